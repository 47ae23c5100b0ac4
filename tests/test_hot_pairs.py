"""Pairs without the kernel can be measured, and their steps counted; so can requests to views."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from benchmarks.floors.commands import pair
from benchmarks.peers.ours import PATIENCE, Threads, redlock
from benchmarks.programs import pair_parts, view_parts
from benchmarks.workloads.hot import Memory, cost, settle
from redlock_django import lock, locks
from redlock_django.exceptions import ResourceLocked
from redlock_django.testing import LocalMaster
from tests.live.linked import linked

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def contender(
    masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Threads:
    """Return the sync API as a contender, in this process."""
    monkeypatch.setenv(PATIENCE, "1.0")
    settings.REDLOCK = redlock([("127.0.0.1", master.port) for master in masters])
    made = Threads.__new__(Threads)  # Django is configured already
    made._lock, made._refused, made._locks = lock, ResourceLocked, locks
    return made


def test_pairs_without_the_kernel_begin_when_no_master_owes_a_reply(
    masters: list[LocalMaster], contender: Threads
) -> None:
    contender.release(contender.acquire("first"))
    linked()
    masters[0].pause()
    contender.release(contender.acquire("second"))  # the paused master owes two replies
    timer = threading.Timer(0.1, masters[0].resume)
    timer.start()
    figures = cost(contender, seconds=0.0)
    timer.join()
    assert figures["pairs"] == 300


@pytest.mark.slow
def test_the_steps_of_a_pair_and_of_a_refusal_add_up_to_its_bytecodes(contender: Threads) -> None:
    settle(contender)
    totals = []
    with Memory(contender) as memory:
        codes = pair_parts.bytecodes(contender, memory)
        for work in pair_parts.TITLES:
            best, shares = pair_parts.timed(contender, memory, work, 0.05)
            lines = "\n".join(pair_parts.table(work, codes[work], best, shares)).splitlines()
            rows = [line.split("|")[2] for line in lines[2:] if line.startswith("|")]
            *steps, total = (int(row.strip(" *").replace(",", "")) for row in rows)
            assert len(steps) == len(pair_parts.STEPS) + 1
            assert min(steps) > 0
            assert sum(steps) == pytest.approx(total, abs=len(steps))  # each is rounded
            assert 0 < best < 10_000
            assert set(shares) <= {*pair_parts.STEPS, pair_parts.LOOP}
            totals.append(total)
    pair, refusal = totals
    assert 1_000 < refusal < pair < 20_000


@pytest.mark.slow
def test_a_step_of_a_pair_that_is_not_found_any_more_is_an_error(
    contender: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_parts, "PLACES", [*pair_parts.PLACES, "wire/renamed.py"])
    settle(contender)
    with Memory(contender) as memory, pytest.raises(RuntimeError, match=r"wire/renamed\.py"):
        pair_parts.bytecodes(contender, memory)


def commands(data: bytes) -> list[list[bytes]]:
    """Return the commands in bytes that were sent."""
    reader, found = hiredis.Reader(), []
    reader.feed(data)
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


def test_the_floor_sends_what_a_client_sends(contender: Threads) -> None:
    resource, sent = "bench:-pair:0001", b""
    settle(contender)
    backend: Any = contender._locks["default"].backend
    connection = backend.thread_driver().sockets.connections[0]
    send = connection.send_some

    def record(data: bytes) -> int:
        nonlocal sent
        count: int = send(data)
        sent += bytes(data[:count])
        return count

    connection.send_some = record
    contender.release(contender.acquire(resource))
    acquire, release = commands(sent)
    token = acquire[10][:32].decode()
    floor_acquire, floor_release = commands(b"".join(pair(resource, token)))
    # Only the round, the holder, the proposed fence, the marker's master and its time differ.
    assert [*floor_acquire[:9], floor_acquire[12]] == [*acquire[:9], acquire[12]]
    assert floor_acquire[11][8:] == acquire[11][8:]
    numbers, floor_numbers = (command[13].split(b",") for command in (acquire, floor_acquire))
    assert floor_numbers[1:-1] == numbers[1:-1]
    assert len(floor_acquire) == len(acquire)
    assert [*floor_release[:6], *floor_release[8:]] == [*release[:6], *release[8:]]


@pytest.mark.slow
@pytest.mark.django_db  # the end of a request looks at connections of earlier tests
def test_a_view_without_a_decorator_runs_no_bytecodes_of_one(settings: Settings) -> None:
    for name, value in view_parts.SITE.items():
        setattr(settings, name, value)
    rows = [line.split("|")[2:4] for line in view_parts.table().splitlines()[2:]]
    counts = [[int(cell.replace(",", "")) for cell in row] for row in rows]
    assert len(rows) == len(view_parts.VIEWS)
    assert [bool(decorator) for decorator, _ in counts] == [False, *[True] * 5]
    assert [bool(idempotency) for _, idempotency in counts] == [*[False] * 4, *[True] * 2]
