"""The compiler: from a symbolic rule to certified code.  See docs/architecture.md for its stages."""
