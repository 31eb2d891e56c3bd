"""What all other folders stand on: C libraries of the compiler's own, float32 rounding, and names of array types."""
