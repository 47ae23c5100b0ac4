"""A shop in which each order must be paid exactly once."""

from __future__ import annotations
