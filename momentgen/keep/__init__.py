"""What is remembered between builds: compiled rules, and which code and libraries they came from."""
