"""The store contract: acquire, extend, release (`backends/base.py`)."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import LimitReached, ResourceLocked
from tests.contract.stores import HOLDER, AsyncCaller, Started, Store, SyncCaller, wait_for_waiters
from tests.inspecting import held
from tests.waiting import until

if TYPE_CHECKING:
    from redlock_django.engine.validity import Lease

TTL = 20.0
"""Seconds of a lock that a test lets expire; on a busy machine it does not expire by itself."""


slots = pytest.mark.parametrize("limit", [1, 2], ids=["a lock", "slots"])
"""Runs a test for a name with one holder, and for one with two slots."""


def acquired(caller: SyncCaller, *resources: str, limit: int = 1) -> bool:
    """Return whether a lock can be acquired now; it is released again."""
    refusal = LimitReached if limit > 1 else ResourceLocked
    try:
        lease = caller.acquire(*resources, limit=limit)
    except refusal:
        return False
    caller.release(lease)
    return True


def hold_all(caller: SyncCaller, limit: int, ttl: float = 30) -> list[Lease]:
    """Acquire every slot of "order:1"; return the leases in the order of their slots."""
    assert caller.backend.has_permits
    leases = [caller.acquire("order:1", ttl=ttl, limit=limit) for _ in range(limit)]
    return sorted(leases, key=lambda lease: lease.slot)


# Exclusion.


def test_a_second_client_is_refused(caller: SyncCaller) -> None:
    caller.acquire("order:1")
    with pytest.raises(ResourceLocked) as refused:
        caller.acquire("order:1")
    assert refused.value.resource == "order:1"
    assert refused.value.retry_after is None or 0 < refused.value.retry_after <= 30


@pytest.mark.attack
def test_names_that_hardly_differ_are_different_resources(store: Store, caller: SyncCaller) -> None:
    names = ("order:a", "order:A", "order:ä", "order:a ", "a/b", "..", ".", "%2F", "a" * 200)
    leases = [caller.acquire(name) for name in names]
    assert [lease.resources for lease in leases] == [(name,) for name in names]
    assert {one.resource for one in held(store.backend).locks} == {*names}
    assert [caller.release(lease) for lease in leases] == [True] * len(names)
    assert caller.acquire(*names).resources == names


def test_many_clients_have_one_winner(caller: SyncCaller) -> None:
    calls = [caller.start("order:1", wait=0) for _ in range(8)]
    until(lambda: all(call.done for call in calls), what="all calls have ended")
    granted = 0
    for call in calls:
        try:
            call.lease()
            granted += 1
        except ResourceLocked:
            pass
    assert granted == 1


def test_no_token_is_shown(caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    assert len(repr(lease)) < 600
    assert not any(len(part) >= 32 and part.isalnum() for part in repr(lease).split("'"))


# Several resources: all or none.


def test_all_resources_are_held(caller: SyncCaller) -> None:
    lease = caller.acquire("a:1", "b:2")
    assert lease.resources == ("a:1", "b:2")
    assert not acquired(caller, "a:1")
    assert not acquired(caller, "b:2")
    caller.release(lease)
    assert acquired(caller, "a:1")
    assert acquired(caller, "b:2")


def test_no_resource_is_kept_if_another_is_refused(caller: SyncCaller) -> None:
    caller.acquire("b:2")
    with pytest.raises(ResourceLocked) as refused:
        caller.acquire("a:1", "b:2")
    assert refused.value.resource == "b:2"
    until(lambda: acquired(caller, "a:1"), what="a:1 is free")


# Fences.


def test_holders_have_growing_fences_and_fingerprints_of_their_own(caller: SyncCaller) -> None:
    fences, fingerprints = [], set()
    for _ in range(5):
        lease = caller.acquire("order:1")
        fences.append(lease.fences[0])
        fingerprints.add(lease.fingerprint)
        caller.release(lease)
    assert fences == sorted(set(fences))
    assert 0 < fences[-1] < 2**53
    assert [len(one) for one in fingerprints] == [8] * 5


def test_each_resource_has_its_fence(caller: SyncCaller) -> None:
    caller.release(caller.acquire("a:1"))
    earlier = caller.acquire("b:2")
    caller.release(earlier)
    lease = caller.acquire("a:1", "b:2")
    assert len(lease.fences) == 2
    assert lease.fences[1] > earlier.fences[0]


# TTL and extension.


def test_a_lease_is_valid_for_less_than_its_ttl(store: Store, caller: SyncCaller) -> None:
    before = store.backend.clock()
    lease = caller.acquire("order:1", ttl=10)
    assert lease.ttl == 10
    assert before <= lease.started <= store.backend.clock()
    assert lease.started + 9 < lease.until < lease.started + 10
    assert store.backend.voided(lease) is False


def test_a_lock_expires(store: Store, caller: SyncCaller) -> None:
    caller.acquire("order:1", ttl=TTL)
    assert not acquired(caller, "order:1")
    store.pass_time(TTL)
    until(lambda: acquired(caller, "order:1"), what="the lock has expired")


def test_an_extension_prolongs_the_lease(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1", ttl=TTL)
    state, extended = caller.extend(lease, 2.5 * TTL)
    assert state is LeaseState.RENEWED
    assert extended.until > lease.until + 20
    assert extended.fences == lease.fences
    store.pass_time(TTL)
    assert not acquired(caller, "order:1")
    assert caller.release(extended) is True


def test_an_extension_to_its_own_deadline_only_asks(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1", ttl=TTL)
    state, asked = caller.extend(lease, lease.until - store.backend.clock())
    assert state is LeaseState.RENEWED
    assert store.backend.merged(lease, asked).until == lease.until
    store.pass_time(TTL)
    until(lambda: acquired(caller, "order:1"), what="the lock has expired as it would have")


def test_an_expired_lease_is_not_extended(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1", ttl=TTL)
    store.pass_time(TTL)
    assert caller.extend(lease, 30)[0] is LeaseState.LOST
    until(lambda: acquired(caller, "order:1"), what="the lock is free")


def test_a_released_lease_is_not_extended(caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    caller.release(lease)
    state, _ = caller.extend(lease, 30)
    assert state is not LeaseState.RENEWED
    assert acquired(caller, "order:1")


# Release.


def test_a_release_frees_at_once(caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    assert caller.release(lease) is True
    assert acquired(caller, "order:1")


@slots
def test_a_release_in_the_minimum_hold_leaves_the_lock(
    store: Store, caller: SyncCaller, limit: int
) -> None:
    assert store.backend.keeps_min_hold
    lease = hold_all(caller, limit)[0]
    lease = replace(lease, earliest_end=lease.started + TTL)
    assert caller.release(lease) is True
    assert not acquired(caller, "order:1", limit=limit)
    store.pass_time(TTL)
    until(lambda: acquired(caller, "order:1", limit=limit), what="the minimum hold is over")


def test_a_second_release_frees_nothing(caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    caller.release(lease)
    caller.acquire("order:1")
    assert caller.release(lease) is not True
    assert not acquired(caller, "order:1"), "the next holder keeps its lock"


def test_a_late_release_leaves_the_next_holder_alone(store: Store, caller: SyncCaller) -> None:
    late = caller.acquire("order:1", ttl=TTL)
    store.pass_time(TTL)
    assert caller.acquire("order:1", wait=10).fences[0] > late.fences[0]
    assert caller.release(late) is not True
    assert not acquired(caller, "order:1")


def test_a_posted_release_frees_soon(store: Store, caller: SyncCaller) -> None:
    store.backend.post_release(caller.acquire("order:1"))
    until(lambda: acquired(caller, "order:1"), what="the lock is free")


def test_posting_a_release_again_raises_nothing(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    caller.release(lease)
    store.backend.post_release(lease)
    store.backend.post_release(lease)
    assert acquired(caller, "order:1")


def test_a_thread_releases_the_lease_of_another_caller(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    assert store.backend.release(lease) in (True, None)
    until(lambda: acquired(caller, "order:1"), what="the lock is free")


def test_a_loop_releases_the_lease_of_a_thread(store: Store) -> None:
    lease = store.backend.acquire(("order:1",), 30, 0, HOLDER)

    async def release() -> bool | None:
        try:
            return await store.backend.arelease(lease)
        finally:
            await store.backend.aclose()

    assert asyncio.run(release()) in (True, None)
    until(lambda: acquired(SyncCaller(store), "order:1"), what="the lock is free")


# Waiting.


def test_a_waiter_gets_the_lock_after_its_release(store: Store, caller: SyncCaller) -> None:
    def waited() -> float:
        lease = caller.acquire("order:1")
        waiter = caller.start("order:1", wait=20)
        wait_for_waiters(store, 1)
        assert not waiter.done
        caller.release(lease)
        lease = waiter.lease()
        caller.release(lease)
        return lease.waited

    # A first attempt may still win when it looks again after it has joined the queue of a database.
    until(waited, "a caller has waited")


@pytest.mark.slow
@slots
def test_a_waiter_gets_the_lock_after_its_expiry(
    store: Store, caller: SyncCaller, limit: int
) -> None:
    hold_all(caller, limit, ttl=TTL)
    # The time passes for the waiter, too.
    waiter = caller.start("order:1", wait=3 * TTL, limit=limit)
    wait_for_waiters(store, 1)
    store.pass_time(TTL)
    assert waiter.lease().names == ("order:1",)
    assert waiter.lease().slot in range(limit)


def test_a_free_resource_is_granted_without_waiting(caller: SyncCaller) -> None:
    assert caller.acquire("order:1", wait=20).waited == 0.0


@slots
def test_waiters_are_served_in_their_order(
    store: Store, caller: SyncCaller, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    store.keep_turns(monkeypatch)
    served = []

    def serve(number: int) -> Lease:
        lease = caller.acquire("order:1", wait=20, limit=limit)
        served.append(number)
        caller.release(lease)
        return lease

    *_, last = hold_all(caller, limit)
    waiters = []
    for number in range(3):
        waiters.append(Started(partial(serve, number)))
        wait_for_waiters(store, number + 1)
    caller.release(last)
    assert [waiter.lease().slot for waiter in waiters] == [last.slot] * 3
    assert served == [0, 1, 2]


def test_a_waiter_gives_up_when_its_time_is_over_and_leaves_nothing(caller: SyncCaller) -> None:
    lease = caller.acquire("order:1")
    wait, waited = 0.2, 0.0
    while not waited:  # on a busy machine the first attempt may take longer than the whole wait
        with pytest.raises(ResourceLocked) as refused:
            caller.acquire("order:1", wait=wait)
        wait, waited = 4 * wait, refused.value.waited
    caller.release(lease)
    until(lambda: acquired(caller, "order:1"), what="the lock is free")


def test_several_resources_are_waited_for(caller: SyncCaller) -> None:
    first, second = caller.acquire("a:1"), caller.acquire("b:2")
    waiter = caller.start("a:1", "b:2", wait=20)
    caller.release(first)
    caller.release(second)
    assert waiter.lease().resources == ("a:1", "b:2")


# Cancellation, loops, forks.


@slots
def test_a_cancelled_waiter_leaves_nothing(store: Store, caller: SyncCaller, limit: int) -> None:
    if not isinstance(caller, AsyncCaller):
        pytest.skip("only tasks are cancelled")
    lease = hold_all(caller, limit)[0]
    waiting = caller.submit(store.backend.aacquire(("order:1",), 30, 20, HOLDER, limit))
    wait_for_waiters(store, 1)
    waiting.cancel()
    with pytest.raises(CancelledError):
        waiting.result(timeout=60)
    wait_for_waiters(store, 0)
    assert caller.release(lease), "its place was gone before the lock ended, and the queue with it"
    until(lambda: acquired(caller, "order:1", limit=limit), what="the lock is free")


def test_a_second_loop_has_connections_of_its_own(store: Store, caller: SyncCaller) -> None:
    caller.acquire("order:1")
    other = AsyncCaller(store)
    try:
        with pytest.raises(ResourceLocked):
            other.acquire("order:1")
        assert other.release(other.acquire("order:2")) is True
    finally:
        other.close()


def test_a_forked_child_does_not_disturb_its_parent(store: Store) -> None:
    lease = store.backend.acquire(("order:1",), 30, 0, HOLDER)
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        status = 1
        try:
            child = SyncCaller(store)
            child.release(child.acquire("order:2"))
            status = 0 if not acquired(child, "order:1") else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.backend.extend(lease, 30)[0] is LeaseState.RENEWED
    assert store.backend.release(lease) is True
