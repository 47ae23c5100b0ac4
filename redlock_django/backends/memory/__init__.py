"""Locks in the memory of one process, on masters that run the scripts of servers."""

from __future__ import annotations

from redlock_django.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
