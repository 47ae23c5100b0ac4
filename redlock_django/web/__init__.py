"""Locks around views and functions: decorators, mixins, rules, transactions and responses."""

from __future__ import annotations

HAS_MIDDLEWARE = "_redlock_middleware"

request_attributes: dict[str, object] = {HAS_MIDDLEWARE: True}
"""The attributes that `LockMiddleware` adds to every request; `apps.py` adds one, and imports
nothing else of this package before a site uses it."""
