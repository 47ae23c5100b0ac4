"""A connection to look at a master with, kept as long as its process lives."""

from __future__ import annotations

from subprocess import Popen
from typing import Any
from weakref import WeakKeyDictionary

from redis import Redis

from redlock_django.testing.masters import LocalMaster

_kept: WeakKeyDictionary[Popen[bytes], Redis] = WeakKeyDictionary()


def looking_at(master: LocalMaster) -> Any:
    """The one of all tests: to make one is five times the work of a look."""
    if master.process not in _kept:
        _kept[master.process] = master.client()
    return _kept[master.process]
