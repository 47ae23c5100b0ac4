"""System checks `redlock_django.E0xx` and `W0xx`, tag `redlock`; docs/howto/operate.md lists them.

Without `--deploy` and `--database` nothing here asks a master.
"""

from __future__ import annotations

from redlock_django.checks import deployment, idempotency, masters, settings, views

__all__ = ["deployment", "idempotency", "masters", "settings", "views"]
