"""The memory backend: exclusion between threads and tasks, and simulated faults."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from redlock_django import QuorumUnreachable, ResourceLocked, lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.memory.keyspace import Keyspace
from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine import attempt, pauses
from redlock_django.engine.attempt import SPLIT_ROUNDS
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.operate.health import master_status
from tests.app.conftest import FIVE, Configure, stop_clocks
from tests.waiting import is_wanted, until

R = "order:1"


@pytest.fixture
def backend(memory: Configure) -> MemoryBackend:
    return memory(MASTERS=FIVE)


@pytest.fixture
def stopped(backend: MemoryBackend, no_renewals: None) -> None:
    """Stop the clocks, on which time then passes by `advance` alone."""
    stop_clocks()


def holders(backend: MemoryBackend, resource: str = R) -> list[bytes | None]:
    return [master.keyspace.get(backend.deployment.lock(resource)) for master in backend.masters]


@pytest.mark.slow
def test_one_of_many_threads_wins_a_free_resource(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Keyspace.get

    def get(self: Keyspace, key: str) -> bytes | None:
        """Switch to another thread after every key that a script reads."""
        found = real(self, key)
        time.sleep(0)
        return found

    monkeypatch.setattr(Keyspace, "get", get)
    # However slow the machine is, threads that share the votes ask again until one has won.
    monkeypatch.setattr(attempt, "SPLIT_ROUNDS", 10_000)
    monkeypatch.setattr(backend, "now", lambda: 0.0)
    for _ in range(20):
        gate = threading.Barrier(8)
        wins: list[object] = []
        refusals: list[object] = []

        def contend(gate: Any = gate, wins: Any = wins, refusals: Any = refusals) -> None:
            gate.wait(60)
            try:
                wins.append(lock(R).acquire())
            except ResourceLocked as error:
                refusals.append(error)

        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (len(wins), len(refusals)) == (1, 7)
        assert len(set(holders(backend)) - {None}) == 1
        backend.clear()


def test_a_thread_calls_a_task(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for interval in ("FALLBACK", "LONGEST"):  # a waiter asks again only when it is called
        monkeypatch.setattr(pauses, interval, 30.0)
    held = lock(R).acquire()

    async def work() -> None:
        async with lock(R, wait=20):
            pass

    loop = threading.Thread(target=asyncio.run, args=(work(),))
    loop.start()
    until(lambda: is_wanted(R), "the waiter is queued")
    held.release()
    loop.join(60)
    assert not loop.is_alive()


def test_split_votes_are_asked_again_for_twice_master_timeout_only(
    memory: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses between all the attempts that a split vote may have add up to more."""
    backend = memory(MASTERS=FIVE, MASTER_TIMEOUT=0.02)
    for index, master in enumerate(backend.masters):
        master.keyspace.set(backend.deployment.lock(R), b"another %d" % (index % 3))
    attempts, run = [], MemoryMaster.run

    def counted(self: MemoryMaster, sent: Any, *args: Any) -> Any:
        attempts.extend([self] if sent.name == "acquire" else [])
        return run(self, sent, *args)

    monkeypatch.setattr(MemoryMaster, "run", counted)
    with pytest.raises(ResourceLocked):
        lock(R).acquire()
    assert 0 < attempts.count(backend.masters[0]) < SPLIT_ROUNDS


def test_clear_forgets_everything_and_brings_every_master_up(backend: MemoryBackend) -> None:
    lock(R).acquire()
    backend.down = [True] * 5
    with pytest.raises(QuorumUnreachable):
        lock("order:2").acquire()
    backend.clear()
    assert holders(backend) == [None] * 5
    with lock("order:2"):
        pass


def test_a_forked_child_does_not_wait_for_a_script_of_its_parent(backend: MemoryBackend) -> None:
    """The thread of the parent that ran it does not exist in the child."""
    running, end = threading.Event(), threading.Event()

    def run_a_script() -> None:
        with interpreter().alone:
            running.set()
            end.wait()

    parent = threading.Thread(target=run_a_script)
    parent.start()
    running.wait(60)
    backend.forked()
    leases: list[Lease] = []
    child = threading.Thread(target=lambda: leases.append(backend.acquire((R,), 30, 0, "{}")))
    child.start()
    child.join(60)
    acquired = len(leases)
    end.set()
    child.join()
    parent.join()
    assert acquired == 1


@pytest.mark.parametrize("down", range(6))
def test_any_number_of_masters_may_be_down(backend: MemoryBackend, down: int) -> None:
    backend.down = [index < down for index in range(5)]
    if down < 3:
        with lock(R) as held:
            assert len([value for value in holders(backend) if value]) == 5 - down
            held.extend()
    else:
        with pytest.raises(QuorumUnreachable):
            lock(R).acquire()
    assert holders(backend) == [None] * 5


# Simulated time and faults.


@pytest.mark.usefixtures("stopped")
def test_a_fence_still_grows_after_fence_ttl(backend: MemoryBackend) -> None:
    with lock(R) as held:
        first = held.fence
    backend.advance(10_000)  # longer than FENCE_TTL
    with lock(R) as held:
        assert held.fence > first


def test_masters_that_refuse_and_hang_are_reported(
    backend: MemoryBackend, outages: list[tuple[str, str, str]]
) -> None:
    backend.refuse(0)
    backend.refuse(0)
    backend.hang(1)
    backend.hang(2)
    with pytest.raises(QuorumUnreachable, match=r"3:6379: did not answer within 0.25 s"):
        lock(R).acquire()
    backend.restore(1)
    with lock(R):
        assert holders(backend).count(None) == 2
    assert outages == [
        ("down", "10.0.0.1:6379", "refused the connection"),
        ("down", "10.0.0.2:6379", "did not answer within 0.25 s"),
        ("down", "10.0.0.3:6379", "did not answer within 0.25 s"),
        ("up", "10.0.0.2:6379", ""),
    ]
    assert [one.reason for one in master_status()][:2] == ["refused the connection", ""]


def test_a_master_that_hung_keeps_its_locks(backend: MemoryBackend) -> None:
    backend.acquire((R,), 10, 0, "{}")
    for index in (0, 1, 2):
        backend.hang(index)
    for index in (0, 1, 2):
        backend.restore(index)
    with pytest.raises(ResourceLocked):
        lock(R).acquire()


@pytest.mark.usefixtures("stopped")
def test_restarted_masters_are_not_counted_until_they_are_trusted(
    backend: MemoryBackend, outages: list[tuple[str, str, str]]
) -> None:
    for index in (0, 1):
        backend.restart(index)
    with lock(R):
        assert holders(backend)[:2] == [None, None]
    before = backend.masters[2].run_id
    backend.restart(2)
    assert backend.masters[2].run_id != before
    with pytest.raises(QuorumUnreachable, match="new or emptied: trusted in 64 s"):
        lock(R).acquire()
    assert [fault.code for one in master_status() for fault in one.faults] == ["untrusted"] * 3
    backend.advance(backend.deployment.restart_delay)
    with lock(R):
        assert None not in holders(backend)
    assert outages == []  # they were never down


@pytest.mark.usefixtures("stopped")
def test_a_restart_ends_an_outage(
    backend: MemoryBackend, outages: list[tuple[str, str, str]]
) -> None:
    backend.hang(4)
    backend.restart(4)
    assert [what for what, _, _ in outages] == ["down", "up"]
    assert "trusted in 64 s" in outages[1][2]


def test_a_refusal_has_each_reason_once_and_replicas_first(backend: MemoryBackend) -> None:
    backend.refuse(0)
    backend.refuse(2)
    backend.down[3] = backend.down[4] = "is a replica of 10.0.0.9:6379"
    with pytest.raises(QuorumUnreachable) as caught:
        lock(R).acquire()
    assert str(caught.value).endswith(
        "(10.0.0.4:6379, 10.0.0.5:6379: is a replica of 10.0.0.9:6379; "
        "10.0.0.1:6379, 10.0.0.3:6379: refused the connection; 10.0.0.2:6379: granted)"
    )


def test_a_master_that_was_flushed_is_not_counted(backend: MemoryBackend) -> None:
    before = backend.masters[0].run_id
    for index in range(3):
        backend.forget(index)
    assert backend.masters[0].run_id == before
    with pytest.raises(QuorumUnreachable, match="emptied"):
        lock(R).acquire()
    backend.clear()
    with lock(R):
        pass


def test_a_master_that_forgot_its_marker_is_not_counted(backend: MemoryBackend) -> None:
    for master in backend.masters[:3]:
        master.keyspace.strings.clear()
    with pytest.raises(QuorumUnreachable, match="not trusted yet"):
        lock(R).acquire()
    for master in backend.masters[:1]:
        master.keyspace.set(backend.deployment.marker, b"trusted")
    with lock(R):
        pass


@pytest.mark.usefixtures("stopped")
def test_a_master_whose_clock_was_set_is_not_counted(backend: MemoryBackend) -> None:
    backend.step_clock(0, 2)
    backend.step_clock(1, -2)
    assert [
        "".join(fault.text for fault in one.faults if fault.code == "clock")
        for one in master_status()[:3]
    ] == [
        "its clock is +2.0 s off the other masters'",
        "its clock is -2.0 s off the other masters'",
        "",
    ]
    with lock(R):
        pass
    backend.step_clock(2, 2)
    with pytest.raises(QuorumUnreachable):
        lock(R).acquire()


async def test_an_extension_that_begins_too_late_is_a_loss(backend: MemoryBackend) -> None:
    """The deadline may pass after the caller has read the clock, before the engine reads it."""
    lease = backend.acquire(("order:1",), 10.0, 0.0, "{}")
    late = replace(lease, until=lease.started)
    assert backend.extend(late, 10.0)[0] is LeaseState.LOST
    assert (await backend.aextend(late, 10.0))[0] is LeaseState.LOST
    assert backend.release(lease) is True
