"""What stages hand on: the graph of real operations, programs of float32 primitives, variants; how each is computed."""
