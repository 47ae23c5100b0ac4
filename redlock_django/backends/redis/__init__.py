"""Redlock over N independent masters, each a Redis or Valkey server."""

from __future__ import annotations

from redlock_django.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
