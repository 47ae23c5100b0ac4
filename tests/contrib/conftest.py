"""Fixtures for tests of integrations that serve views."""

from __future__ import annotations

from tests.app.conftest import memory, urls

__all__ = ["memory", "urls"]
