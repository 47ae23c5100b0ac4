"""A small site with one counter, incremented by every kind of view; for servers in processes."""
