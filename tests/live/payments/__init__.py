"""A small site that takes each payment once; it runs in server processes."""
