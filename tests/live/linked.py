"""A process that is connected to every master: a first lock stands on those that were quickest."""

from __future__ import annotations

from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.handler import locks
from redlock_django.locking.lock import lock
from tests.waiting import until


def linked() -> None:
    """Have this process connected to every master of "default"."""
    with lock("first"):
        wait_linked()


def wait_linked() -> None:
    """Wait until the links to all masters of "default" stand, or stand again."""
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    links = backend.sync_links()
    until(lambda: links.usable() == len(links.masters), what="a link to every master")
