"""A tour of the locks: nine pages, each with a button that makes something go wrong."""

from __future__ import annotations
