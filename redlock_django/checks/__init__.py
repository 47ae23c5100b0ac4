"""System checks `redlock_django.E0xx` and `W0xx`; docs/how-to/operate.md lists them.

Importing this package registers the checks of locks; `apps.py` registers those of idempotency.
Their tag is `redlock`. Checks that connect to the masters have the tag `redlock_masters` and run
only with `check --deploy --database ALIAS`, as Django's own database checks do.
"""

from __future__ import annotations

from redlock_django.checks import deployment, masters, settings, views
from redlock_django.checks.settings import TAG

__all__ = ["TAG", "deployment", "masters", "settings", "views"]
