"""A small site: counters that every kind of view increments, and payments that are taken once."""
