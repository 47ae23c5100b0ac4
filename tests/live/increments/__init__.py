"""A small site with one counter that every kind of view increments; run by real servers."""
