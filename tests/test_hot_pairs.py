"""Pairs without the kernel can be measured, and their steps counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import hiredis
import pytest

from benchmarks.contenders import Place
from benchmarks.contenders.floor_commands import pair
from benchmarks.contenders.ours import Threads
from benchmarks.site import section
from benchmarks.studies import pair_parts
from benchmarks.studies.hot import Memory, cost, driver, settle
from redlock_django.testing import LocalMaster
from tests.live.linked import linked

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def contender(masters: list[LocalMaster], settings: Settings) -> Threads:
    """Return the sync API as a contender, in this process."""
    addresses = [("127.0.0.1", master.port) for master in masters]
    found = section(addresses, TTL=30, MASTER_TIMEOUT=1.0, CONNECT_TIMEOUT=30.0)
    settings.REDLOCK = found["REDLOCK"]
    return Threads(Place(found))


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
    with Memory() as memory:
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
    with Memory() as memory, pytest.raises(RuntimeError, match=r"wire/renamed\.py"):
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
    connection = driver().links.masters[0].link.connection
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
    assert floor_acquire[:9] == acquire[:9]
    assert floor_acquire[11][8:] == acquire[11][8:]
    numbers, floor_numbers = (command[12].split(b",") for command in (acquire, floor_acquire))
    assert floor_numbers[1:-1] == numbers[1:-1]
    assert len(floor_acquire) == len(acquire)
    assert floor_release[:6] == release[:6]
    assert len(floor_release) == len(release)
