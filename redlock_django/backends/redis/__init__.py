"""Redlock over N independent Redis or Valkey masters: its code is in `backends.redlock`."""

from __future__ import annotations

from redlock_django.backends.redlock.backend import RedisBackend

__all__ = ["RedisBackend"]
