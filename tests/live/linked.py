"""Connecting a process to every master: a first lock needs only the masters that answer first."""

from __future__ import annotations

from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks
from redlock_django.wire.links.links import Links
from tests.waiting import until


def linked() -> None:
    """Connect this process to every master of "default"."""
    with lock("first", wait=60):  # on a busy machine a master may answer too late for its marker
        wait_linked()


def wait_linked() -> None:
    """Wait until this process has a usable link to every master of "default"."""
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    links = backend.thread_driver().links
    until(lambda: links.link_wait.usable() == len(links.masters), what="a link to every master")


def has_sleepers(links: Links) -> bool:
    """Return whether a waiter of these links sleeps until it is called."""
    return any(waiter.pause is not None for waiter in list(links.waiters._by_name.values()))
