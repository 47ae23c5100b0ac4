"""System checks `redlock_django.E0xx` and `W0xx`; docs/how-to/operate.md lists them.

Each module registers its checks when `apps.py` imports it. Their tag is `redlock`. Checks that
connect to the masters have the tag `redlock_masters` and run only with
`check --deploy --database ALIAS`, as Django's own database checks do.
"""

from __future__ import annotations

TAG = "redlock"
