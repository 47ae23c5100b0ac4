"""min_hold: a lock that is released early stays held until its minimum hold is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import transaction

from redlock_django import AlreadyHeld, InvalidRedlock, LockLost, ResourceLocked, hold, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.operate.forced_release import ReleaseOutcome, force_release
from redlock_django.testing import assert_locked, assert_not_locked
from tests.app.conftest import stop_clocks
from tests.app.ways import SyncWay, in_both_ways
from tests.waiting import until_wanted

passed = MemoryBackend.advance


@pytest.fixture(autouse=True)
def _stopped(three_masters: MemoryBackend, no_renewals: None) -> None:
    stop_clocks()


@in_both_ways
async def test_a_released_lock_is_refused_until_min_hold_is_over(way: SyncWay) -> None:
    async with way.block(lock("nightly", min_hold=5)) as held:
        passed(1.0)
    assert not held.locked
    with pytest.raises(ResourceLocked) as refused:
        await way.acquire(lock("nightly"))
    assert refused.value.retry_after is not None
    assert 4.0 <= refused.value.retry_after <= 4.1
    passed(3.0)
    assert_locked("nightly")
    passed(1.1)
    async with way.block(lock("nightly")) as following:
        assert following.fence > 0


def test_a_lock_that_is_held_for_longer_is_free_at_once() -> None:
    with lock("nightly", min_hold=5):
        passed(5.1)
    assert_not_locked("nightly")


def is_cancelled() -> None:
    async def job() -> None:
        async with lock("nightly", min_hold=5):
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(1)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(job())


def dies() -> None:
    lock("nightly", min_hold=30).acquire()  # and is never released: TTL is 10 s


def is_lost() -> None:
    held = lock("nightly", min_hold=5, ttl=6, renew=False).acquire()
    held._held_lease.mark_lost("for the test")  # type: ignore[union-attr]
    with pytest.raises(LockLost):
        held.ensure_held()


def is_nested() -> None:
    with lock("nightly", min_hold=5), lock("nightly", reentrant=True):
        pass


def has_a_ttl_of_the_same_length() -> None:
    with lock("nightly", min_hold=59, ttl=59):
        pass


@pytest.mark.parametrize(
    ("use", "least", "most"),
    [
        (is_cancelled, 4.9, 5.1),
        (dies, 29.9, 30.9),
        (is_lost, 4.9, 5.1),
        (is_nested, 4.9, 5.1),
        (has_a_ttl_of_the_same_length, 58.9, 59.7),  # less than the drift is left
    ],
)
def test_a_lock_stays_held_until_min_hold_is_over(
    use: Callable[[], None], least: float, most: float
) -> None:
    use()
    with pytest.raises(ResourceLocked):
        lock("nightly", reentrant=True).acquire()
    passed(least)
    assert_locked("nightly")
    passed(most - least)
    assert_not_locked("nightly")


def test_several_resources_stay_held_together_and_an_extension_keeps_their_end() -> None:
    names = [f"r{number}" for number in range(8)]
    with lock(*names, min_hold=5) as held:
        passed(3.0)
        held.extend(20)
    assert_locked(*names)
    passed(2.1)
    assert_not_locked(*names)


@pytest.mark.django_db
def test_an_operator_may_release_a_lock_before_min_hold() -> None:
    with lock("nightly", min_hold=5) as held:
        fingerprint = held.fingerprint
    freed = force_release("nightly", by="ops", fingerprint=fingerprint)
    assert freed.outcome is ReleaseOutcome.RELEASED
    assert_not_locked("nightly")


def test_a_waiter_gets_the_lock_when_min_hold_is_over() -> None:
    locks.close()  # the next store has the real clock
    began = time.monotonic()
    first = lock("nightly", min_hold=0.3, ttl=60, renew=False).acquire()

    async def both() -> None:
        waiter = asyncio.ensure_future(lock("nightly", wait=30).aacquire())
        await until_wanted("nightly")
        first.release()
        await (await waiter).arelease()

    asyncio.run(both())  # not after 60 s, its TTL
    assert time.monotonic() - began >= 0.3


# Nested locks and transactions: the promise is kept, or the lock is refused.


def test_an_inner_lock_cannot_have_a_min_hold_of_its_own() -> None:
    with lock("nightly"), pytest.raises(AlreadyHeld, match="pass min_hold to the outer lock"):
        lock("nightly", reentrant=True, min_hold=5).acquire()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sees_commits")
def test_a_transaction_does_not_shorten_min_hold() -> None:
    with transaction.atomic():
        job = lock("nightly", min_hold=5)
        with job:
            pass
        for again in (job, lock("nightly", min_hold=5), lock("nightly", reentrant=True)):
            with pytest.raises(AlreadyHeld, match="min_hold"):
                again.acquire()
        passed(1.0)
    assert_locked("nightly")
    with pytest.raises(ResourceLocked):
        lock("nightly").acquire()
    passed(4.1)
    assert_not_locked("nightly")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sees_commits")
def test_in_a_transaction_the_lock_can_be_acquired_again_after_min_hold() -> None:
    with transaction.atomic():
        with lock("nightly", min_hold=2):
            pass
        passed(2.1)
        with lock("nightly"):
            pass
    assert_not_locked("nightly")


def test_a_job_that_fails_is_not_run_again_within_min_hold() -> None:
    """test_hold.py shows that each kind of job is run once."""

    def fails() -> None:
        raise ZeroDivisionError

    nightly = hold("nightly", min_hold=5)(fails)
    with suppress(ZeroDivisionError):
        nightly()
    with pytest.raises(ResourceLocked):
        nightly()
    assert hold("nightly", min_hold=5, on_conflict="skip")(fails)() is None


# Values.


def test_a_min_hold_needs_a_ttl_that_the_alias_allows() -> None:
    lock("nightly", min_hold=59)
    with pytest.raises(ValueError, match=r"min_hold with drift is 60.6\d* s and MAX_TTL is 60 s"):
        lock("nightly", min_hold=60)


def test_a_store_without_min_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks["default"].backend, "keeps_min_hold", False)
    with pytest.raises(InvalidRedlock, match="its BACKEND cannot hold a lock after its release"):
        lock("nightly", min_hold=5)
    lock("nightly", min_hold=0)
