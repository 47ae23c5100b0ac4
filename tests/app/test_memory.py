"""The backend in memory: the same promises, faults one can choose, and threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from redlock_django.backends.memory import MemoryBackend, MemoryMaster
from redlock_django.exceptions import QuorumUnreachable, ResourceLocked
from redlock_django.handler import locks
from redlock_django.locking import lock

if TYPE_CHECKING:
    from pytest_django import Settings

MEMORY = "redlock_django.backends.memory.MemoryBackend"
FIVE = [f"redis://10.0.0.{number}:6379/0" for number in range(1, 6)]
R = "order:1"


@pytest.fixture
def backend(settings: Settings) -> MemoryBackend:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": FIVE}}
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    return backend


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another thread run between whatever a script reads and what it does about it."""
    real = MemoryMaster.get

    def get(self: MemoryMaster, key: str) -> bytes | None:
        found = real(self, key)
        time.sleep(0)
        return found

    monkeypatch.setattr(MemoryMaster, "get", get)


def holders(backend: MemoryBackend, resource: str = R) -> list[bytes | None]:
    return [master.get(backend.terms.lock(resource)) for master in backend.masters]


@pytest.mark.usefixtures("restless", "backend")
def test_threads_exclude_each_other() -> None:
    inside, most, rounds, gate = 0, 0, [0], threading.Barrier(8)

    def work() -> None:
        nonlocal inside, most
        gate.wait(5)
        for _ in range(25):
            with lock(R, wait=20):
                inside += 1
                most = max(most, inside)
                seen = rounds[0]
                for _ in range(20):
                    pass
                rounds[0] = seen + 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1
    assert rounds == [200]


@pytest.mark.usefixtures("restless")
def test_one_of_many_threads_wins_a_free_resource(backend: MemoryBackend) -> None:
    for _ in range(20):
        gate = threading.Barrier(8)
        wins: list[object] = []
        refusals: list[object] = []

        def contend(
            gate: threading.Barrier = gate,
            wins: list[object] = wins,
            refusals: list[object] = refusals,
        ) -> None:
            gate.wait(5)
            try:
                wins.append(lock(R).acquire())
            except ResourceLocked as error:
                refusals.append(error)

        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert (len(wins), len(refusals)) == (1, 7)
        assert len(set(holders(backend)) - {None}) == 1
        backend.clear()


async def test_tasks_wait_for_each_other(backend: MemoryBackend) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with lock(R, wait=20):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert most == 1
    assert holders(backend) == [None] * 5


def test_clear_forgets_everything_and_brings_every_master_up(backend: MemoryBackend) -> None:
    lock(R).acquire()
    backend.down = [True] * 5
    with pytest.raises(QuorumUnreachable):
        lock("order:2").acquire()
    backend.clear()
    assert holders(backend) == [None] * 5
    with lock("order:2"):
        pass


@pytest.mark.parametrize("down", range(6))
def test_as_many_masters_down_as_one_likes(backend: MemoryBackend, down: int) -> None:
    backend.down = [place < down for place in range(5)]
    if down < 3:
        with lock(R) as held:
            assert len([value for value in holders(backend) if value]) == 5 - down
            held.extend()
    else:
        with pytest.raises(QuorumUnreachable):
            lock(R).acquire()
    assert holders(backend) == [None] * 5


def test_a_master_that_forgot_its_marker_is_not_counted(backend: MemoryBackend) -> None:
    for master in backend.masters[:3]:
        master.strings.clear()
    with pytest.raises(QuorumUnreachable, match="not trusted yet"):
        lock(R).acquire()
    for master in backend.masters[:1]:
        master.set(backend.terms.marker, b"trusted")
    with lock(R):
        pass


def test_a_clock_that_stands_apart_is_not_counted(backend: MemoryBackend) -> None:
    real = backend.masters[0].time
    for master in backend.masters[:2]:
        master.time = lambda: real() + 2_000_000
    with lock(R) as held:
        assert held.locked
    backend.masters[2].time = lambda: real() + 4_000_000
    with pytest.raises(QuorumUnreachable):
        lock(R).acquire()


def test_foreign_locks_without_expiry(backend: MemoryBackend) -> None:
    for master in backend.masters[:3]:
        master.set(backend.terms.lock(R), b"by hand")
    with pytest.raises(ResourceLocked) as caught:
        lock(R).acquire()
    assert caught.value.retry_after is None
    assert holders(backend) == [b"by hand"] * 3 + [None] * 2


def test_the_index_shows_what_is_held(backend: MemoryBackend) -> None:
    with lock("a", "b"):
        assert [set(m.sets[backend.terms.held]) for m in backend.masters] == [{b"a", b"b"}] * 5
    assert [m.sets[backend.terms.held] for m in backend.masters] == [{}] * 5
