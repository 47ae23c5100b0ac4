"""A lock that a release has granted to its next waiter is a lock like any other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import LockLost, ResourceLocked, lock, resume_lock
from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import locks
from redlock_django.operate.forced_release import ReleaseOutcome, force_release
from tests.live.left_over import nothing_left, values
from tests.live.linked import linked
from tests.live.noted_grants import note_grants
from tests.live.replaced_scripts import lengthen_offers
from tests.timeouts import generous_timeouts
from tests.waiting import until
from tests.wire.test_waiters import queued

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.django_db]
R = "order:1"
Work = Callable[[Lock], Awaitable[Any]]


@pytest.fixture(autouse=True)
def granted(
    masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Return a list of the waiters to which a majority grants the lock."""
    settings.REDLOCK = {
        "default": {
            "MASTERS": [m.url for m in masters],
            "RESTART_DELAY": 0,
            **generous_timeouts(4.0),
        }
    }
    lengthen_offers(monkeypatch)
    names = note_grants(monkeypatch)
    linked()
    yield names
    nothing_left(masters)


def hand_off(
    masters: list[LocalMaster],
    work: Work,
    free: Callable[[Lock], object] = Lock.release,
    **how: Any,
) -> Any:
    """Hold a lock that a task of a loop waits for, free it, and return what its work returns."""
    linked_too, going_on = threading.Event(), threading.Event()

    async def wait() -> Any:
        async with lock("other"):
            pass  # so that the loop has links
        linked_too.set()
        await asyncio.to_thread(going_on.wait)
        async with lock(R, wait=60, **how) as held:
            result = await work(held)
        await locks.aclose()
        return result

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, wait())
        assert linked_too.wait(60)
        holder = lock(R, ttl=60).acquire()
        until(lambda: len(values(masters, R)) == 5, "held by all")
        going_on.set()
        until(lambda: queued(masters, R) == [1] * 5, "queued by all")
        until(is_asleep, "the task sleeps")
        free(holder)
        return done.result(60)


def is_asleep() -> bool:
    """Return whether a task of a loop sleeps in a queue."""
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    drivers = list(backend._loops.values())
    return any(d.links.waiters.queues._queues and not d.links.owing() for d in drivers)


def test_it_is_extended_and_renewed(masters: list[LocalMaster], granted: list[str]) -> None:
    async def work(held: Lock) -> None:
        assert await held.aextend() > 0
        end = time.monotonic() + held.remaining()
        await asyncio.to_thread(
            until, lambda: time.monotonic() + held.remaining() > end + 0.3, "a renewal"
        )
        await asyncio.to_thread(until, lambda: len(values(masters, R)) == 5, "held by all")

    hand_off(masters, work, ttl=4.0)
    assert len(granted) == 1


def test_it_may_be_acquired_again_inside(masters: list[LocalMaster], granted: list[str]) -> None:
    async def work(held: Lock) -> None:
        async with lock(R, ttl=30, reentrant=True) as inner:
            assert inner.fence == held.fence
        held.ensure_held()

    hand_off(masters, work, ttl=30)
    assert len(granted) == 1


def test_it_has_a_minimum_hold(masters: list[LocalMaster], granted: list[str]) -> None:
    async def work(held: Lock) -> None:
        held.ensure_held()

    hand_off(masters, work, ttl=30, min_hold=0.5)
    with pytest.raises(ResourceLocked):
        lock(R).acquire()
    lock(R, wait=60).acquire().release()
    assert len(granted) == 1


def test_it_is_handed_on(masters: list[LocalMaster], granted: list[str]) -> None:
    async def work(held: Lock) -> tuple[str, int]:
        return await held.atransfer(ttl=30), held.fence

    ticket, fence = hand_off(masters, work, ttl=30)
    with resume_lock(ticket) as taken:
        assert taken.fence == fence
    assert len(granted) == 1


def test_a_forced_release_grants_it(masters: list[LocalMaster], granted: list[str]) -> None:
    def free(holder: Lock) -> None:
        freed = force_release(R, by="root", fingerprint=holder.fingerprint)
        assert freed.outcome is ReleaseOutcome.RELEASED
        with pytest.raises(LockLost):
            holder.extend()
        with suppress(LockLost):
            holder.release()

    async def work(held: Lock) -> None:
        assert await held.aextend() > 0

    hand_off(masters, work, free, ttl=30)
    assert len(granted) == 1
