"""What all other folders stand on: C libraries that the compiler itself calls, and names of array types."""
