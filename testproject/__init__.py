"""A small site that uses redlock_django, for the demo and the tests and as an example."""

from __future__ import annotations
