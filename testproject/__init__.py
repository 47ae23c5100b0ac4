"""A small site that uses redlock_django: for the demo, for the tests, and as an example."""

from __future__ import annotations
