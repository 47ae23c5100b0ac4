"""Locks spread over shards, each a store of its own."""
