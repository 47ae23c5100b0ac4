"""Fixtures for tests of integrations that serve views."""

from __future__ import annotations

from tests.app.conftest import urls

__all__ = ["urls"]
