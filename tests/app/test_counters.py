"""Counters and log records: every event is counted and logged once."""

from __future__ import annotations

import dis
import logging
import os
from contextlib import suppress
from typing import Any

import pytest
from pytest_django import Settings

from redlock_django import InvalidRedlock, LockLost, QuorumUnreachable, ResourceLocked, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.engine.validity import Lease
from redlock_django.locking.reports import Counters, Counts, MasterCounts, counter_types, counters
from redlock_django.operate.forced_release import force_release
from redlock_django.testing import held_elsewhere
from tests.app.conftest import FIVE, MEMORY, Configure, stop_clocks, without_quorum
from tests.losses import ends_lost

THREE = FIVE[:3]
R = "order:1"
advance = MemoryBackend.advance


@pytest.fixture(autouse=True)
def backend(three_masters: MemoryBackend) -> MemoryBackend:
    return three_masters


@pytest.fixture
def stopped(backend: MemoryBackend, no_renewals: None) -> None:
    """Stop the clock of the backend: time passes by `advance` alone, and by its waits."""
    stop_clocks()
    backend.sleep = advance


def counted() -> dict[str, float]:
    """Return the counters that are not 0."""
    counts = counters["default"]
    numbers = {name: getattr(counts, name) for name in counter_types()}
    return {name: number for name, number in numbers.items() if number}


def test_every_counter_is_described_and_starts_at_0() -> None:
    assert all(getattr(Counts(), name) == 0 for name in counter_types())
    assert "replayed" in counter_types()
    with pytest.raises(AttributeError, match="'aquired'"):
        _ = Counts().aquired  # type: ignore[attr-defined]


def test_a_lock_acquired_and_released(stopped: None) -> None:
    for _ in range(3):
        with lock(R, "order:2"):
            advance(2)
    assert counted() == {"acquired": 3, "released": 3, "held_seconds": 6}


def test_a_lock_is_held_until_its_release_begins(
    backend: MemoryBackend, stopped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = backend.release

    def slow_release(lease: Lease) -> bool | None:
        advance(1)
        return release(lease)

    monkeypatch.setattr(backend, "release", slow_release)
    with lock(R):
        advance(2)
    assert counted() == {"acquired": 1, "released": 1, "held_seconds": 2}


def test_refused_and_unavailable_are_counted_separately(backend: MemoryBackend) -> None:
    with held_elsewhere(R):
        before = counted()
        for _ in range(2):
            with pytest.raises(ResourceLocked):
                lock(R).acquire()
        assert counted() == {**before, "refused": 2}
        backend.down[:] = [True] * 3
        with pytest.raises(QuorumUnreachable):
            lock("order:2").acquire()
        assert counted() == {**before, "refused": 2, "unavailable": 1}


def test_continuing_without_a_lock_counts_as_unavailable(memory: Configure) -> None:
    memory(MASTERS=THREE, ON_UNAVAILABLE="proceed")
    with without_quorum(), lock(R):
        pass
    assert counted() == {"unavailable": 1}


def test_waits_and_their_seconds_are_counted(backend: MemoryBackend, stopped: None) -> None:
    backend.acquire((R,), 5, 0, "{}")
    with lock(R, wait=20):
        pass
    counts = counters["default"]
    assert (counts.acquired, counts.waited) == (1, 1)
    assert counts.waited_seconds == pytest.approx(5, abs=0.2)
    backend.acquire((R,), 60, 0, "{}")
    with pytest.raises(ResourceLocked) as caught:
        lock(R, wait=3).acquire()
    assert counters["default"].waited == 2
    assert counters["default"].waited_seconds == counts.waited_seconds + caught.value.waited
    assert caught.value.waited == pytest.approx(3, abs=0.2)


def test_a_lost_lock_and_its_late_release_are_counted(stopped: None) -> None:
    with ends_lost(), lock(R, ttl=5) as held:
        advance(6)
        with pytest.raises(LockLost):
            held.ensure_held()
        assert counted() == {"acquired": 1, "lost": 1, "held_seconds": 6}
    assert counted() == {"acquired": 1, "lost": 1, "held_seconds": 6, "released_late": 1}


@pytest.mark.django_db
def test_locks_released_by_force_are_counted() -> None:
    held = lock(R).acquire()
    force_release(R, by="ann", fingerprint="00000000")
    assert counters["default"].forced == 0
    force_release(R, by="ann")
    force_release(R, by="ann")
    assert counters["default"].forced == 1
    assert held.release() is False


@pytest.mark.parametrize("name", ["count", "count_end", "count_wait"])
def test_a_counter_is_read_and_written_without_an_interruption(name: str) -> None:
    """A call or a loop would let another thread, a signal handler or a finalizer count."""
    steps = {step.opname for step in dis.get_instructions(getattr(Counters, name))}
    assert {step for step in steps if step.startswith(("CALL", "JUMP", "FOR", "SEND"))} == set()


def test_a_snapshot_does_not_change() -> None:
    before = counters["default"]
    with lock(R):
        pass
    assert before.acquired == 0
    with pytest.raises(AttributeError):
        before.acquired = 3  # type: ignore[misc]


def test_an_unknown_alias_is_an_error_that_names_the_nearest(settings: Settings) -> None:
    settings.REDLOCK = {"payments": {"BACKEND": MEMORY}}
    assert counters["payments"] == Counts()
    with pytest.raises(InvalidRedlock, match="payments"):
        counters["payment"]


def test_the_masters_are_those_of_the_settings(settings: Settings) -> None:
    assert list(counters["default"].masters) == [f"10.0.0.{n}:6379" for n in (1, 2, 3)]
    counters.set_master_state("default", "10.0.0.2:6379", up=False)
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": [*THREE[1:], "redis://new"]}}
    _ = locks["default"]
    assert counters["default"].masters == {
        "10.0.0.2:6379": MasterCounts(errors=1, down=True),
        "10.0.0.3:6379": MasterCounts(),
        "new:6379": MasterCounts(),
    }


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_begins_at_zero() -> None:
    with lock(R):
        pass
    assert counters["default"].acquired == 1
    with counters._mutex:  # as another thread of the parent may hold it
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                with lock("order:2"):
                    pass
                code = 0 if counters["default"].acquired == 1 else 2
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert counters["default"].acquired == 1


# The log.


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key in FIELDS}


FIELDS = {"resource", "using", "fingerprint", "waited", "held", "reason", "master"}


def test_acquire_and_release_are_logged_at_debug(
    stopped: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "redlock_django"), lock("a", "b") as held:
        fingerprint, token = held.fingerprint, held._require_lease().lease.token
        advance(2)
    took, gave = caplog.records
    common = {"resource": "a, b", "using": "default", "fingerprint": fingerprint}
    assert (took.levelno, fields(took)) == (logging.DEBUG, {**common, "waited": 0.0})
    assert (gave.levelno, fields(gave)) == (logging.DEBUG, {**common, "held": 2.0})
    assert took.getMessage() == f"redlock a, b: acquired by {fingerprint} after 0.000 s"
    assert gave.getMessage() == f"redlock a, b: released by {fingerprint} after 2.000 s"
    assert token not in caplog.text + repr([record.__dict__ for record in caplog.records])


def test_a_missing_quorum_is_logged_as_an_error_and_a_held_lock_is_not(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with held_elsewhere(R), pytest.raises(ResourceLocked):
        lock(R).acquire()
    assert not [r for r in caplog.records if r.levelno > logging.DEBUG]
    backend.down[:] = [True] * 3
    with pytest.raises(QuorumUnreachable):
        lock(R).acquire()
    [record] = [r for r in caplog.records if r.levelno > logging.DEBUG]
    assert record.levelno == logging.ERROR
    assert "10.0.0.1:6379, 10.0.0.2:6379, 10.0.0.3:6379: down" in record.getMessage()
    assert fields(record) == {"resource": R, "using": "default", "waited": 0.0}
