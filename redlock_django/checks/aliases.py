"""The aliases that checks look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from redlock_django.conf.settings import AliasSettings, load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks


def valid_aliases() -> Iterator[AliasSettings]:
    """Yield the settings of each alias that has valid ones; E001 reports the others."""
    for alias in locks:
        with suppress(InvalidRedlock):
            yield load(alias)
