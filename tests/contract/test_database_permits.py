"""Permits in a database: what they send, waiters that are called or died, faults."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError

from redlock_django.backends.database import sql as database_sql
from redlock_django.backends.database.attempt import DatabaseAttempt, Slots
from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import WAITERS
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.exceptions import LimitReached
from tests import inspecting
from tests.contract.stores import (
    DATABASES,
    HOLDER,
    Database,
    MariaDB,
    Postgres,
    Sqlite,
    Started,
    listen,
)
from tests.waiting import until

if TYPE_CHECKING:
    from redlock_django.backends.database.sql import LockRequest, Taken
    from redlock_django.engine.validity import Lease

NAME = "export"


@pytest.fixture
def backend(database: Database) -> DatabaseBackend:
    return database.backend


def acquired(backend: DatabaseBackend, limit: int, wait: float = 0) -> Lease:
    """Acquire a slot of the name."""
    return backend.acquire((NAME,), 30, wait, HOLDER, limit)


def test_a_client_is_never_refused_while_a_slot_is_free(backend: DatabaseBackend) -> None:
    refused: list[LimitReached] = []

    def work() -> None:
        for _ in range(25):
            try:
                lease = acquired(backend, limit=3)
            except LimitReached as error:
                refused.append(error)
            else:
                backend.release(lease)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []


def test_slots_of_the_longest_name_have_rows(backend: DatabaseBackend) -> None:
    leases = [backend.acquire(("x" * 507,), 30, 0, HOLDER, 1000) for _ in range(5)]
    assert len({lease.slot for lease in leases}) == 5
    assert all(backend.release(lease) is True for lease in leases)


def test_a_waiter_that_died_keeps_one_slot_for_one_turn(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.keep_turns(monkeypatch)
    held = [acquired(backend, limit=2) for _ in range(2)]

    def add_dead(cursor: Any) -> None:
        cursor.execute(
            f"INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) "
            f"VALUES ('dead', '{NAME}', 0, 9000000000000000)"
        )

    backend.connections.run(add_dead)
    backend.release(held[0])
    with pytest.raises(LimitReached, match="a slot is reserved for a waiter") as refused:
        acquired(backend, limit=2)
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 10
    backend.release(held[1])
    assert acquired(backend, limit=2).slot in {0, 1}, "one waiter needs one of two slots only"
    with pytest.raises(LimitReached):
        acquired(backend, limit=2)
    database.pass_time(10)
    assert acquired(backend, limit=2).slot in {0, 1}


def held_while_waiters_sleep(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch, limit: int
) -> list[Lease]:
    """Hold all slots of the name. Its waiters look again when they are called, and not before."""
    monkeypatch.setattr(database_sql, "ALIVE", 180.0)
    database.keep_turns(monkeypatch)
    held = [acquired(backend, limit) for _ in range(limit)]
    listen(backend)
    return held


def queued(backend: DatabaseBackend, limit: int) -> list[Started]:
    """Start as many waiters as the name has slots, one after the other."""
    waiters = []
    for number in range(limit):
        waiters.append(Started(lambda: acquired(backend, limit, wait=100)))
        until(partial(_waits, backend, number + 1), what="it waits")
    return waiters


@pytest.mark.postgres
@pytest.mark.parametrize("database", [Postgres], ids=["postgres"], indirect=True)
def test_each_released_slot_calls_another_waiter(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_while_waiters_sleep(database, backend, monkeypatch, limit=3)
    waiters = queued(backend, limit=3)
    for lease in held:
        backend.release(lease)
    leases = [waiter.lease() for waiter in waiters]
    assert {lease.slot for lease in leases} == {0, 1, 2}
    assert max(lease.waited for lease in leases) < 9


def release_at_once(
    backend: DatabaseBackend, held: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release these locks in transactions that do not see each other."""
    assert backend.listener is not None
    # A waiter that took its slot between two of the commits would not call the next one.
    committed, wake = threading.Event(), backend.listener._wake
    monkeypatch.setattr(
        backend.listener, "_wake", lambda payload: committed.wait(60) and wake(payload)
    )
    with ExitStack() as transactions:
        transactions.callback(committed.set)
        for lease in held:
            cursor = transactions.enter_context(closing(backend.settings.connect())).cursor()
            cursor.execute("BEGIN")
            transactions.callback(cursor.execute, "COMMIT")
            assert backend.release_step(lease).work(cursor)


@pytest.mark.postgres
@pytest.mark.parametrize("database", [Postgres], ids=["postgres"], indirect=True)
@pytest.mark.parametrize("limit", [2, 3])
def test_slots_that_are_released_at_once_serve_as_many_waiters(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Each release does not see the others, which are not committed yet."""
    held = held_while_waiters_sleep(database, backend, monkeypatch, limit)
    waiters = queued(backend, limit)
    release_at_once(backend, held, monkeypatch)
    leases = [waiter.lease() for waiter in waiters]
    assert {lease.slot for lease in leases} == set(range(limit))
    assert max(lease.waited for lease in leases) < 9


@pytest.mark.postgres
@pytest.mark.parametrize("database", [Postgres], ids=["postgres"], indirect=True)
def test_a_waiter_that_was_too_late_for_a_slot_calls_the_next_one(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waiter took the slot that the second one wanted, so the one left to it is free."""
    held = held_while_waiters_sleep(database, backend, monkeypatch, limit=3)
    look, late = DatabaseAttempt._look, threading.Event()

    def look_too_early(attempt: DatabaseAttempt, *asked: Any) -> Slots:
        slots = look(attempt, *asked)
        if len(slots.open) < 2 or late.is_set():
            return slots
        late.set()  # the second waiter: the first is called for a slot, and takes it without a look
        taken = slot_resource("export", waiters[0].lease().slot)
        return Slots((taken, *(one for one in slots.open if one != taken))[:2], 0.0, 0.0)

    waiters = queued(backend, limit=3)
    monkeypatch.setattr(DatabaseAttempt, "_look", look_too_early)
    release_at_once(backend, held, monkeypatch)
    leases = [waiter.lease() for waiter in waiters]
    assert late.is_set()
    assert {lease.slot for lease in leases} == {0, 1, 2}
    assert max(lease.waited for lease in leases) < 9


@pytest.mark.parametrize(
    "database",
    DATABASES[1:],
    indirect=True,
)
def test_two_later_clients_do_not_take_the_slot_of_the_first_waiter(
    database: Database, backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots are free and one waiter waits; each of the two has looked before the other took."""
    database.keep_turns(monkeypatch)
    held = [acquired(backend, limit=2) for _ in range(2)]
    monkeypatch.setattr(database_sql, "ALIVE", 600.0)
    backend.connections.run(lambda cursor: database_sql.join(cursor, "first", (NAME,)))
    for lease in held:
        backend.release(lease)
    look, others = DatabaseAttempt._look, list[Started]()

    def look_slowly(self: DatabaseAttempt, cursor: Any, wanted: LockRequest) -> Slots:
        found = look(self, cursor, wanted)
        if not others:
            others.append(Started(lambda: acquired(backend, limit=2)))
            others[0].lease()
        return found

    monkeypatch.setattr(DatabaseAttempt, "_look", look_slowly)
    with pytest.raises(LimitReached, match="reserved for a waiter"):
        acquired(backend, limit=2)


def _waits(backend: DatabaseBackend, many: int) -> bool:
    def count(cursor: Any) -> bool:
        cursor.execute(f"SELECT count(*) FROM {WAITERS}")
        return bool(cursor.fetchone()[0] == many)

    return backend.connections.run(count)


def test_an_attempt_that_is_repeated_holds_one_slot(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the first run is lost, and the second one takes another slot."""
    backend.connections.run(lambda cursor: None)  # a connection that breaks, once it was used
    taken: list[str] = []

    def guess(self: DatabaseAttempt, cursor: Any, wanted: LockRequest) -> Taken:
        fences = self._take_one(cursor, wanted, wanted.resources[len(taken)])
        taken.extend(fences)
        if len(taken) == 1:
            raise OperationalError("the connection was closed")
        return fences

    monkeypatch.setattr(DatabaseAttempt, "_guess", guess)
    lease = acquired(backend, limit=2)
    assert taken == [NAME, f"{NAME}[1]"]
    assert [held.resource for held in inspecting.held(backend).locks] == [f"{NAME}[1]"]
    assert backend.release(lease) is True


@pytest.mark.parametrize("database", [Sqlite, MariaDB], ids=["sqlite", "mariadb"], indirect=True)
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("error", [(1213, "Deadlock found"), ("the connection was closed",)])
def test_a_waiter_that_fails_to_leave_the_queue_holds_what_its_lease_says(
    backend: DatabaseBackend, limit: int, error: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is repeated, after its first run has taken the lock."""
    monkeypatch.setattr(backend.connections, "_most", 1)  # nothing is repeated on a new connection
    held = [acquired(backend, limit) for _ in range(limit)]
    leave = database_sql.leave
    failed: list[str] = []

    def fail_once(cursor: Any, name: str) -> None:
        if not failed:
            failed.append(name)
            raise OperationalError(*error)
        leave(cursor, name)

    monkeypatch.setattr(database_sql, "leave", fail_once)
    waiter = Started(lambda: acquired(backend, limit, wait=20))
    until(partial(_waits, backend, 1), what="it waits")
    for lease in held:
        backend.release(lease)
    lease = waiter.lease()
    assert failed
    assert [one.resource for one in inspecting.held(backend).locks] == list(lease.resources)
    assert backend.release(lease) is True


def test_an_attempt_that_is_given_up_holds_no_slot(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: DatabaseAttempt, cursor: Any, wanted: LockRequest) -> Taken:
        assert self._take_one(cursor, wanted, wanted.resources[2])
        raise KeyboardInterrupt

    monkeypatch.setattr(DatabaseAttempt, "_guess", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acquired(backend, limit=3)
    until(lambda: not inspecting.held(backend).locks, what="no slot is held")


@pytest.mark.parametrize(
    ("left", "ahead", "waits", "open_slots", "free_in"),
    [
        ([5, 3], 0, False, 0, 3),
        ([5, -1], 0, False, 1, 0),
        ([5, -1], 1, True, 0, 9),  # the waiter before has its turn
        ([5, -12], 1, True, 1, 0),  # and had it
        ([5, -12], 2, True, 0, 8),
        ([5, -12], 2, False, 1, 0),  # a caller that does not wait leaves one turn
        ([-1, -1], 0, True, 2, 0),
        ([-1, -1], 1, True, 1, 0),  # one is left to the waiter before
        ([-1, -2], 2, True, 0, 8),
        ([-1, -12], 2, True, 1, 0),  # the one for which two had their turn
        ([5, None], 9, True, 1, 0),  # a slot that nobody has held
    ],
)
def test_as_many_waiters_as_slots_are_free_have_a_turn(
    left: list[float | None], ahead: int, waits: bool, open_slots: int, free_in: float
) -> None:
    names = (NAME, f"{NAME}[1]")
    known = {name: one for name, one in zip(names, left, strict=True) if one is not None}
    slots = Slots.of(names, known, ahead, 10, waits)
    assert (len(slots.open), slots.free_in) == (open_slots, free_in)
