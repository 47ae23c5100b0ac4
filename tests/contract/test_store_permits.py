"""The contract of stores with permits: at most `limit` clients hold a name, each one slot of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from redlock_django.backends.inspection.results import ReleaseOutcome
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import LimitReached, ResourceLocked
from redlock_django.operate.inspection import who_holds
from tests import inspecting
from tests.contract.stores import HOLDER, Started, Store, SyncCaller, wait_for_waiters
from tests.contract.test_leases import acquired, hold_all
from tests.inspecting import free, look
from tests.waiting import until

if TYPE_CHECKING:
    from redlock_django.engine.validity import Lease

NAME = "order:1"


@pytest.mark.parametrize("limit", [2, 3])
def test_as_many_clients_as_the_limit_hold_a_name(caller: SyncCaller, limit: int) -> None:
    held = hold_all(caller, limit)
    assert [lease.slot for lease in held] == list(range(limit))
    assert {lease.names for lease in held} == {(NAME,)}
    with pytest.raises(LimitReached, match=f"its {limit} slots are held") as refused:
        caller.acquire(NAME, limit=limit)
    assert refused.value.resource == NAME
    for lease in held:
        assert caller.release(lease) is True
        again = caller.acquire(NAME, limit=limit)
        assert again.slot == lease.slot
        assert again.fences[0] > lease.fences[0]
        assert not acquired(caller, NAME, limit=limit)


def test_a_refusal_says_when_the_first_slot_is_free(caller: SyncCaller) -> None:
    caller.acquire(NAME, ttl=30, limit=2)
    caller.acquire(NAME, ttl=20, limit=2)
    with pytest.raises(LimitReached) as refused:
        caller.acquire(NAME, limit=2)
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 20.3


@pytest.mark.parametrize("limit", [2, 3])
def test_never_more_clients_than_the_limit_hold_a_name(caller: SyncCaller, limit: int) -> None:
    counting, now, most = threading.Lock(), 0, 0

    def all_slots_were_held() -> bool:
        return most >= limit

    def hold_often() -> Lease:
        nonlocal now, most
        for _ in range(5):
            lease = caller.acquire(NAME, wait=25, limit=limit)
            with counting:
                now += 1
                most = max(most, now)
            until(all_slots_were_held)
            assert caller.extend(lease, 30)[0] is LeaseState.RENEWED
            with counting:
                now -= 1
            caller.release(lease)
        return lease

    for call in [Started(hold_often) for _ in range(3 * limit)]:
        call.lease()
    assert most == limit
    hold_all(caller, limit)


def test_clients_that_do_not_wait_find_all_free_slots(caller: SyncCaller) -> None:
    for _ in range(5):
        leases = [call.lease() for call in [caller.start(NAME, wait=0, limit=3) for _ in range(3)]]
        assert {lease.slot for lease in leases} == {0, 1, 2}
        for lease in leases:
            caller.release(lease)


def test_a_slot_is_extended_and_lost_like_a_lock(store: Store, caller: SyncCaller) -> None:
    first, second = hold_all(caller, 2)
    assert caller.extend(second, 30)[0] is LeaseState.RENEWED
    assert free(store.backend, second.resources[0]).outcome.name == "RELEASED"
    assert caller.extend(second, 30)[0] is LeaseState.LOST
    assert caller.extend(first, 30)[0] is LeaseState.RENEWED
    assert caller.acquire(NAME, limit=2).slot == 1


def test_each_held_slot_is_listed(store: Store, caller: SyncCaller) -> None:
    held = hold_all(caller, 3)
    caller.release(held[1])
    waiting = caller.start(NAME, wait=20)  # for slot 0 only: it has no limit
    wait_for_waiters(store, 1)
    assert {lock.resource for lock in inspecting.held(store.backend).locks} == {NAME, f"{NAME}[2]"}
    caller.release(held[0])
    assert waiting.lease().slot == 0


def test_an_operator_sees_and_releases_slots(store: Store, caller: SyncCaller) -> None:
    holder = HOLDER.replace("}", ',"limit":3}')
    for _ in range(3):
        caller.acquire(NAME, holder=holder, limit=3)
    waiting = caller.start(NAME, wait=60, limit=3)
    wait_for_waiters(store, 1)
    page = inspecting.held(store.backend, search=NAME)
    assert sorted((one.name, one.slot, one.limit) for one in page.locks) == [
        (NAME, slot, 3) for slot in range(3)
    ]
    assert [one.waiters for one in page.locks] == [1, 0, 0]
    assert (page.slots[NAME].held, page.slots[NAME].limits) == (3, (3,))
    (second,) = look(store.backend, [f"{NAME}[1]"]).locks
    assert (second.slot, second.waiters) == (1, 1)
    freed = free(store.backend, second.resource, second.fingerprint)
    assert (freed.outcome, freed.name, freed.slot) == (ReleaseOutcome.RELEASED, NAME, 1)
    assert waiting.lease().slot == 1
    found = who_holds(NAME, slots=True)
    assert {one.resource for one in found.locks} == {NAME, f"{NAME}[1]", f"{NAME}[2]"}


def test_a_lock_without_a_limit_takes_one_slot(caller: SyncCaller) -> None:
    plain = caller.acquire(NAME)
    assert caller.acquire(NAME, limit=2).slot == 1
    assert not acquired(caller, NAME, limit=2)
    with pytest.raises(ResourceLocked):
        caller.acquire(NAME)
    caller.release(plain)
    assert caller.acquire(NAME, limit=2).slot == 0
