"""Strings from outside, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a string cut to 200 characters, in ASCII if it has unprintable characters."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else text[:199] + "…"
