"""Bridges to other packages; each imports its package only when it is imported itself."""

from __future__ import annotations
