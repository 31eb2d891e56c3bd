"""What all other folders stand on: C libraries that the compiler itself calls, float32 rounding, and names of array types."""
