"""Attempts that are given up, and releases that fail, at the very moment that matters."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError

from redlock_django.backends.database import sql as database_sql
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.dialects import WAITERS
from redlock_django.backends.database.hand_on import DatabaseSwap
from redlock_django.backends.database.jobs import Connection, Job
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.wakeup import LoopWakeup, Wakeup
from tests.contract.stores import HOLDER, AsyncCaller, Database, Sqlite, SyncCaller

if TYPE_CHECKING:
    from pytest_django import Settings


def resting() -> tuple[Coroutine[Any, Any, object], Callable[[], object]]:
    """Return a wait for a call, and what ends it."""
    wakeup = LoopWakeup()
    return wakeup.wait(10), wakeup.wake


def working() -> tuple[Coroutine[Any, Any, None], Callable[[], object]]:
    """Return a wait for a job, and what ends the job."""

    class Started(Connections):
        def submit(self, job: Job[Any]) -> None:
            """Do nothing: the test ends the job."""

    def connect() -> Any:
        raise AssertionError("no connection is needed")

    job: Job[None] = Job(lambda cursor: None)
    connections = Started(connect, name="x", most=1, timeout=10, forgotten=1)
    return connections.aperform(job), job.end


@pytest.mark.parametrize("wait", [resting, working])
@pytest.mark.parametrize("passes", range(6))
async def test_no_cancellation_is_lost(
    wait: Callable[[], tuple[Coroutine[Any, Any, None], Callable[[], object]]], passes: int
) -> None:
    waiting, arrive = wait()
    task = asyncio.create_task(waiting)
    for _ in range(3):
        await asyncio.sleep(0)
    arrive()
    for _ in range(passes):
        await asyncio.sleep(0)
    if task.cancel():  # else it had ended before
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.postgres
def test_a_cancelled_waiter_that_is_joining_does_not_stay_in_the_queue(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, backend = postgres_store, postgres_store.backend
    joining, cancelled = threading.Event(), threading.Event()
    released: SimpleQueue[None] = SimpleQueue()
    join, release = database_sql.join, database_sql.release

    def slow_join(cursor: Any, name: str, resources: Any) -> database_sql.Place:
        joining.set()
        assert cancelled.wait(10)
        return join(cursor, name, resources)

    def seen_release(cursor: Any, resources: Any, token_hash: str) -> bool:
        done = release(cursor, resources, token_hash)
        released.put(None)
        return done

    monkeypatch.setattr(database_sql, "join", slow_join)
    monkeypatch.setattr(database_sql, "release", seen_release)
    caller = AsyncCaller(store)
    caller.acquire("order:1")
    waiting = caller.submit(backend.aacquire(("order:1",), 30, 20, HOLDER))
    assert joining.wait(10)
    waiting.cancel()
    released.get(timeout=10)  # by the release that is posted; the attempt is still joining
    cancelled.set()
    released.get(timeout=10)  # after the attempt

    def waiters(cursor: Any) -> int:
        cursor.execute(f"SELECT count(*) FROM {WAITERS}")
        count: int = cursor.fetchone()[0]
        return count

    assert backend.connections.run(waiters) == 0
    caller.close()


class Interrupted(Connections):
    """Connections whose database comes back whenever a thread has read `_unsent`.

    Another thread has failed before, and repeats its release then.
    """

    is_looking = False

    @property
    def _unsent(self) -> deque[Job[Any]]:
        unsent: deque[Job[Any]] = self.__dict__["unsent"]
        if not self.is_looking:
            self.is_looking = True
            unsent.append(Job(lambda cursor: None))
            self._report(True)
            self.is_looking = False
        return unsent

    @_unsent.setter
    def _unsent(self, value: deque[Job[Any]]) -> None:
        self.__dict__["unsent"] = value


def test_a_release_that_fails_while_the_database_comes_back_is_not_lost() -> None:
    def connect() -> Any:
        raise OperationalError("is down")

    connections = Interrupted(connect, name="x", most=1, timeout=10, forgotten=1)
    release: Job[None] = Job(lambda cursor: None)
    connections._do(release, Connection())
    connections._report(True)
    repeated = [connections._jobs.get_nowait() for _ in range(connections._jobs.qsize())]
    assert release in repeated


@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("breaks", "freed"),
    [("before", True), ("after", None), ("never", True), ("lost", False), ("conflict", False)],
)
def test_a_release_whose_answer_was_lost_is_unknown(
    request: pytest.FixtureRequest,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[SyncCaller],
    breaks: str,
    freed: bool | None,
) -> None:
    store = Sqlite(request, settings)
    release, errors = database_sql.release, [OperationalError("the connection was closed")]
    deadlock = OperationalError("the server undid the statement")
    deadlock.__cause__ = Exception(1213)

    def breaking(cursor: Any, *arguments: Any) -> bool:
        if breaks == "before" and errors:
            raise errors.pop()
        if breaks == "conflict" and errors:
            errors.clear()
            raise deadlock
        done = release(cursor, *arguments)
        if breaks == "after" and errors:
            raise errors.pop()
        return done

    with closing(kind(store)) as caller:
        lease = caller.acquire("order:1")
        if breaks in ("lost", "conflict"):
            store.pass_time(60)
        monkeypatch.setattr(database_sql, "release", breaking)
        assert caller.release(lease) is freed
        monkeypatch.undo()
        caller.release(caller.acquire("order:1"))


def test_extensions_wait_together_for_a_database_that_hangs(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that renews all locks of the process waits for them."""
    backend = sqlite.backend
    leases = [backend.acquire((f"order:{n}",), 30, 0, HOLDER) for n in range(5)]
    began = now = backend.clock()

    class Unanswered(Wakeup):
        def wait(self, seconds: float | None = None) -> bool:
            nonlocal now
            now += seconds or 0.0
            return False

    monkeypatch.setattr("redlock_django.backends.protocol_backend.Wakeup", Unanswered)
    monkeypatch.setattr(backend, "clock", lambda: now)
    monkeypatch.setattr(backend.connections, "submit", lambda job: None)
    extended = backend.extend_all([(lease, 30) for lease in leases])
    assert extended == [(LeaseState.UNKNOWN, lease) for lease in leases]
    assert now - began == pytest.approx(backend.settings.database_timeout)


@pytest.mark.parametrize("order", ["release first", "undo first"])
@pytest.mark.parametrize("times", [1, 2], ids=["one hand-on", "two hand-ons"])
def test_a_lock_is_released_in_either_order_with_the_undo_of_its_hand_on(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, times: int, order: str
) -> None:
    backend = sqlite.backend
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)
    posted: list[Callable[[Any], object]] = []
    monkeypatch.setattr(backend.connections, "post", posted.append)
    monkeypatch.setattr(DatabaseSwap, "taken", interrupted)
    for _ in range(times):
        with pytest.raises(KeyboardInterrupt):
            backend.acquire(lease.names, 30, 0, HOLDER, 1, lease)
    backend.post_release(lease)
    monkeypatch.undo()
    assert len(posted) == times + 1
    for work in posted if order == "undo first" else reversed(posted):
        backend.connections.run(work)
    assert backend.release(backend.acquire(("order:1",), 30, 0, HOLDER)) is True


def test_a_lock_is_not_lost_while_its_hand_on_is_being_undone(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a database that did not answer, the undo may come after the next statement."""
    backend = sqlite.backend
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)
    posted: list[Callable[[Any], object]] = []
    monkeypatch.setattr(backend.connections, "post", posted.append)
    with monkeypatch.context() as interrupting:
        interrupting.setattr(DatabaseSwap, "taken", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.acquire(lease.names, 30, 0, HOLDER, 1, lease)
    assert backend.extend(lease, 30)[0] is LeaseState.UNKNOWN
    with pytest.raises(StoreUnavailable):
        backend.acquire(lease.names, 30, 0, HOLDER, 1, lease)
    for work in posted:
        backend.connections.run(work)
    assert backend.extend(lease, 30)[0] is LeaseState.RENEWED
    handed = backend.acquire(lease.names, 30, 0, HOLDER, 1, lease)
    assert backend.extend(lease, 30)[0] is LeaseState.LOST
    assert backend.release(handed) is True


def interrupted(self: DatabaseSwap) -> Any:
    raise KeyboardInterrupt
