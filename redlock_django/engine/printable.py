"""Text of others, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Give a text shortened to 200 characters and fit for logs and terminals, whatever it holds."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else text[:199] + "…"
