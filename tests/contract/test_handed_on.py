"""The contract of a lease that is handed on: one client takes it, with its fence, or none does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from redlock_django import lock, resume_lock
from redlock_django.backends.database.hand_on import DatabaseSwap
from redlock_django.backends.zookeeper.hand_on import ZooKeeperSwap
from redlock_django.engine.attempt import Wait
from redlock_django.engine.errors import LockLost, ResourceLocked, TicketUsed
from redlock_django.engine.validity import LeaseState
from redlock_django.locking import handing
from redlock_django.wire.clock import wall_ns
from tests.contract.stores import HOLDER, Started, Store, SyncCaller
from tests.inspecting import free, look
from tests.waiting import until

if TYPE_CHECKING:
    from redlock_django.backends.protocol_backend import StoreProtocol
    from redlock_django.engine.validity import Lease

NAME = "order:1"
TTL = 5.0
IN_TRANSIT = '{"host":"web1","handed_on":1}'


def give(caller: SyncCaller, lease: Lease, ttl: float = 30) -> Lease:
    """Hand a lease on; return what a ticket has of it."""
    assert caller.backend.hands_on
    handed = caller.hand_on(lease, ttl, IN_TRANSIT)
    now = caller.backend.clock()
    assert handed.until - lease.started <= 2 * ttl
    return replace(
        handed, holder="", ttl=0.0, started=0.0, until=handed.until - now, home=None,
        earliest_end=handed.held_for(caller.backend.clock),
    )  # fmt: skip


@pytest.mark.parametrize("names", [(NAME,), ("a", NAME, "c")], ids=["one name", "several"])
def test_each_taker_holds_with_the_fences_of_the_giver(
    caller: SyncCaller, names: tuple[str, ...]
) -> None:
    lease = first = caller.acquire(*names)
    for _ in range(3):
        taken = caller.resume(give(caller, lease))
        assert taken.fences == first.fences
        assert taken.resources == names
        assert taken.token not in (lease.token, "")
        assert caller.extend(taken, 30)[0] is LeaseState.RENEWED
        with pytest.raises(ResourceLocked):
            caller.acquire(NAME)
        lease = taken
    assert caller.release(lease) is True
    assert caller.acquire(NAME).fences[0] > first.fences[first.resources.index(NAME)]


def test_nobody_gets_a_lock_that_was_handed_on_and_not_taken(caller: SyncCaller) -> None:
    lease = caller.acquire(NAME)
    handed = give(caller, lease)
    assert caller.extend(lease, 30)[0] is LeaseState.LOST
    assert caller.release(lease) is not True
    caller.backend.post_release(lease)
    with pytest.raises(ResourceLocked):
        caller.acquire(NAME)
    caller.release(caller.resume(handed))


def test_the_second_taker_finds_that_the_ticket_was_used(caller: SyncCaller) -> None:
    handed = give(caller, caller.acquire(NAME))
    taken = caller.resume(handed)
    with pytest.raises(TicketUsed, match=f"{NAME}: this ticket was used before") as used:
        caller.resume(handed)
    assert used.value.resource == NAME
    assert caller.extend(taken, 30)[0] is LeaseState.RENEWED
    caller.release(taken)
    with pytest.raises(TicketUsed):
        caller.resume(handed)


def test_a_ticket_is_too_late_when_its_time_is_over(store: Store, caller: SyncCaller) -> None:
    handed = give(caller, caller.acquire(NAME, ttl=TTL), TTL)
    store.pass_time(TTL + 1)
    late = replace(handed, ends=handed.ends - TTL - 1)  # the clocks of the servers do not move
    with pytest.raises(LockLost, match=f"{NAME}: this ticket is too late"):
        caller.resume(late)
    other = caller.acquire(NAME, wait=30)
    with pytest.raises(LockLost):
        caller.resume(late)
    assert caller.release(other) is True


def test_a_lock_whose_ticket_is_lost_can_be_released(caller: SyncCaller) -> None:
    """As `transfer()` does after an interrupt, which also posts the release of its own lease."""
    lease = caller.acquire(NAME)
    handed = caller.hand_on(lease, 30, IN_TRANSIT)
    caller.backend.post_release(handed)
    caller.backend.post_release(lease)
    caller.release(caller.acquire(NAME, wait=20))


class Interrupted(Exception):
    """The exception that a signal handler raises."""


def _raise(*_: object, **__: object) -> NoReturn:
    raise Interrupted


def _interrupt_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt each hand-on, and each client that takes a lock, once the store has done it."""
    replace_nodes = ZooKeeperSwap._replace

    def replace_and_raise(swap: ZooKeeperSwap, *, ephemeral: bool) -> StoreProtocol[bool]:
        yield from replace_nodes(swap, ephemeral=ephemeral)
        raise Interrupted

    monkeypatch.setattr(ZooKeeperSwap, "_replace", replace_and_raise)
    monkeypatch.setattr(DatabaseSwap, "taken", _raise)
    monkeypatch.setattr(Wait, "lease", _raise)


def test_an_interrupted_hand_on_leaves_the_lock_with_its_own_ttl(
    store: Store, caller: SyncCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = caller.acquire(NAME, ttl=30)
    with monkeypatch.context() as interrupting:
        _interrupt_swaps(interrupting)
        with pytest.raises(Interrupted):
            give(caller, lease, 60)
    until(lambda: caller.extend(lease, 30)[0] is LeaseState.RENEWED, "it is as it was")
    store.pass_time(31)
    caller.release(caller.acquire(NAME, wait=10))


def test_an_interrupted_taker_leaves_the_lock_with_the_time_of_its_ticket(
    store: Store, caller: SyncCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = give(caller, caller.acquire(NAME, ttl=30), 30)
    with monkeypatch.context() as interrupting:
        _interrupt_swaps(interrupting)
        for _ in range(2):  # the ticket was not used
            with pytest.raises(Interrupted):
                caller.resume(handed, ttl=60)
            until(lambda: "handed_on" in look(store.backend, [NAME]).locks[0].holder, "restored")
    store.pass_time(31)
    caller.release(caller.acquire(NAME, wait=10))


def test_a_hand_on_never_shortens_a_lock(store: Store, caller: SyncCaller) -> None:
    lock(NAME, ttl=60).acquire().transfer(ttl=1)
    store.pass_time(15)
    with pytest.raises(ResourceLocked):
        caller.acquire(NAME)


def test_a_hand_on_does_not_prolong_a_minimum_hold(caller: SyncCaller) -> None:
    lease = caller.acquire(NAME)
    lease = replace(lease, earliest_end=lease.started)
    assert caller.hand_on(lease, 30, IN_TRANSIT).earliest_end == lease.earliest_end


@pytest.mark.parametrize("off", [-70, 3, 70])
def test_the_wall_clock_of_a_taker_does_not_matter(
    store: Store, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    ticket = lock(NAME, ttl=60, min_hold=35).acquire().transfer(ttl=50)
    late = lock("late").acquire().transfer(ttl=45)
    monkeypatch.setattr(handing, "wall_ns", lambda: wall_ns() + off * 10**9, raising=False)
    store.pass_time(15)
    lock("other").acquire().release()  # from which a client of ZooKeeper learns the time
    resume_lock(ticket, ttl=2).acquire().release()
    with pytest.raises(ResourceLocked):
        lock(NAME).acquire()
    store.pass_time(20)
    other = lock(NAME, wait=20).acquire()
    with pytest.raises(TicketUsed):
        resume_lock(ticket).acquire()
    assert other.release()
    store.pass_time(10)
    with pytest.raises(LockLost):
        resume_lock(late).acquire()


def test_the_lock_of_a_taker_that_dies_ends_with_its_own_ttl(
    store: Store, caller: SyncCaller
) -> None:
    caller.resume(give(caller, caller.acquire(NAME), 30), ttl=TTL)
    store.pass_time(TTL + 1)
    caller.release(caller.acquire(NAME, wait=10))


def test_of_several_takers_at_once_one_holds(caller: SyncCaller) -> None:
    for _ in range(5):
        handed = give(caller, caller.acquire(NAME))
        takers = [Started(lambda: caller.resume(handed)) for _ in range(4)]  # noqa: B023
        held = []
        for taker in takers:
            try:
                held.append(taker.lease())
            except TicketUsed:
                continue
        (taken,) = held
        assert caller.release(taken) is True


def test_a_slot_is_handed_on_with_its_number(caller: SyncCaller) -> None:
    first, second = (caller.acquire(NAME, limit=2) for _ in range(2))
    taken = caller.resume(give(caller, second))
    assert (taken.slot, taken.limit, taken.names) == (second.slot, 2, (NAME,))
    with pytest.raises(ResourceLocked):
        caller.acquire(NAME, limit=2)
    assert caller.release(taken) is True
    again = caller.acquire(NAME, limit=2)
    assert again.slot == second.slot
    assert caller.release(first) is True
    assert caller.release(again) is True


def test_a_lost_lease_is_not_handed_on(store: Store, caller: SyncCaller) -> None:
    lease = caller.acquire(NAME, ttl=20)
    caller.release(lease)
    with pytest.raises(LockLost, match="lost before it was handed on"):
        give(caller, lease)
    expired = caller.acquire(NAME, ttl=20)
    store.pass_time(21)
    with pytest.raises(LockLost):
        give(caller, expired)
    partly = caller.acquire("a", NAME, "c")
    free(store.backend, NAME)
    with pytest.raises(LockLost):
        give(caller, partly)
    caller.release(partly)
    caller.release(caller.acquire("a", NAME, "c"))


def test_a_waiter_gets_the_lock_when_the_taker_releases_it(
    store: Store, caller: SyncCaller
) -> None:
    handed = give(caller, caller.acquire(NAME))
    waiter = caller.start(NAME, wait=30)
    until(lambda: look(store.backend, [NAME]).locks[0].waiters, "it waits")
    taken = caller.resume(handed)
    assert not waiter.done
    caller.release(taken)
    assert waiter.lease().fences[0] > taken.fences[0]


def test_a_waiter_gets_a_lock_that_was_not_taken_in_time(store: Store, caller: SyncCaller) -> None:
    give(caller, caller.acquire(NAME, ttl=TTL), TTL)
    store.pass_time(TTL)
    lease = caller.start(NAME, wait=30).lease()
    caller.release(lease)


def test_operators_see_what_was_handed_on_and_not_taken(store: Store, caller: SyncCaller) -> None:
    handed = give(caller, caller.acquire(NAME))
    (held,) = look(store.backend, [NAME]).locks
    assert held.holder["handed_on"] == 1
    assert held.has_quorum
    caller.release(caller.resume(handed, holder=HOLDER))
    handed = give(caller, caller.acquire(NAME))
    (held,) = look(store.backend, [NAME]).locks
    free(store.backend, NAME, held.fingerprint)
    with pytest.raises((LockLost, TicketUsed)):
        caller.resume(handed)
