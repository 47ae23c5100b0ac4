"""System checks `redlock_django.E0xx` and `W0xx`; docs/how-to/operate.md lists them.

Their tag is `redlock`, and `redlock_masters` where masters are asked: for that `check` needs
`--deploy` and a wish, as Django's own checks of databases do.
"""

from __future__ import annotations

from redlock_django.checks import deployment, idempotency, masters, settings, views

__all__ = ["deployment", "idempotency", "masters", "settings", "views"]
