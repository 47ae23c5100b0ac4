"""Redlock over N masters: the Redis store, and what the memory store shares with it."""
