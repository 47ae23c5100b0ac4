"""Fixtures of links that a test drives step by step."""

from __future__ import annotations

from tests.wire.manual_links import links, single

__all__ = ["links", "single"]
