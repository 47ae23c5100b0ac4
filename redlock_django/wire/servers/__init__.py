"""Servers: how they are reached, what they report, and whether they are trusted."""
