"""What is remembered between builds: slow results, and which code and libraries they came from."""
