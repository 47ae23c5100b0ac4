"""Pairs without the kernel can be measured, and their steps counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from benchmarks import pair_parts
from benchmarks.peers.ours import PATIENCE, Threads, redlock
from benchmarks.worker.hot import Memory, hot, settle
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
    figures = hot(contender, seconds=0.0)
    timer.join()
    assert figures["pairs"] == 300


def test_the_steps_of_a_pair_add_up_to_its_bytecodes(contender: Threads) -> None:
    settle(contender)
    with Memory(contender) as memory:
        codes = pair_parts.bytecodes(contender, memory)
        best, shares = pair_parts.timed(contender, memory, 0.05)
    lines = list(pair_parts.table(codes, best, shares))
    counts = [int(line.split("|")[2].strip(" *").replace(",", "")) for line in lines[2:-2]]
    *steps, pair = counts
    assert len(steps) == len(pair_parts.STEPS) + 1
    assert min(steps) > 0
    assert sum(steps) == pytest.approx(pair, abs=len(steps))  # each is rounded
    assert 1_000 < pair < 20_000
    assert 0 < best < 10_000
    assert set(shares) <= {*pair_parts.STEPS, pair_parts.LOOP}


def test_a_step_of_a_pair_that_is_not_found_any_more_is_an_error(
    contender: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_parts, "PLACES", [*pair_parts.PLACES, "wire/renamed.py"])
    settle(contender)
    with Memory(contender) as memory, pytest.raises(RuntimeError, match=r"wire/renamed\.py"):
        pair_parts.bytecodes(contender, memory)
