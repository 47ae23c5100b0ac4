"""A small site that takes payments, each of them once; for servers in processes."""
