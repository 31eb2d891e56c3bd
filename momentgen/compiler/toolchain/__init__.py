"""C libraries that the compiler uses itself: compiled once, called by ctypes."""
