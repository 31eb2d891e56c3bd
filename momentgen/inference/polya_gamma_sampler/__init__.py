"""The Pólya-gamma distribution PG(b, z): exact draws.  The head of ``polya_gamma.c`` derives the method."""
