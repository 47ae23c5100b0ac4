"""A tour of the locks: eight pages, each with a button that makes something go wrong."""

from __future__ import annotations
