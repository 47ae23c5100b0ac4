"""Redlock over N masters: what the Redis store and the memory store share."""
