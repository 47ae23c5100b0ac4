"""Redlock over N independent Redis or Valkey masters."""

from __future__ import annotations

from redlock_django.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
