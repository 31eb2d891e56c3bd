"""What f is: its pieces, the lines it follows, where it bends."""
