"""An engine for DATABASES that calls itself Oracle, and needs no driver."""

from __future__ import annotations

from django.db.backends.dummy.base import DatabaseWrapper as Dummy


class DatabaseWrapper(Dummy):
    """Cannot be connected to."""

    vendor = "oracle"
