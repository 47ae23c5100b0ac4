"""What an `Attempt` has to have done, by a driver of whichever colour."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from redlock_django.idempotency.recorders import Recording
from redlock_django.locking.lock import Lock


class InThread(NamedTuple):
    """Do what may wait for the database, the cache or a file."""

    work: Callable[[], Any]


class Ask(NamedTuple):
    """Ask a callable of the site, which may be a coroutine function in an async view."""

    site: Callable[..., Any]


class WhoAsks(NamedTuple):
    """Give the user of the request."""


class TakeLock(NamedTuple):
    """Take a lock until the request is answered."""

    lock: Lock


class RunView(NamedTuple):
    """Call the view, and have it recorded if there is a recorder."""

    recorder: Recording | None


Work = InThread | Ask | WhoAsks | TakeLock | RunView
Way = Generator[Work, Any, Any]
