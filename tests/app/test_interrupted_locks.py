"""An interrupt between the store and the lock: no lock is left that nobody releases."""

from __future__ import annotations

import _thread
import signal
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import methodcaller
from typing import Any

import pytest
from pytest_django import Settings

from redlock_django import lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from tests.inspecting import free, look
from tests.live.test_locking_interrupts import Lines, Place

NAME = "order:1"


class _Interrupting(weakref.ref[Any]):
    interrupt = staticmethod(_thread.interrupt_main)


class Tripwire:
    """A local variable: when the function that has it returns, a signal is pending.

    Python handles the signal in the caller, at the first instruction that looks for signals.
    """

    def __init__(self) -> None:
        self.reference = _Interrupting(self, methodcaller("interrupt"))
        kept.append(self.reference)


kept: list[Any] = []


@pytest.fixture(autouse=True)
def _memory(settings: Settings) -> Iterator[None]:
    settings.REDLOCK = {
        "default": {
            "BACKEND": "redlock_django.backends.memory.MemoryBackend",
            "MASTERS": [f"redis://10.0.0.{number}:6379/0" for number in (1, 2, 3)],
        }
    }
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    kept.clear()


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_an_interrupt_as_the_store_returns_the_lease_leaves_no_lock(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = MemoryBackend.acquire

    def tripped(self: MemoryBackend, *arguments: Any) -> Any:
        lease = acquire(self, *arguments)
        wire = Tripwire()  # noqa: F841
        return lease

    backend = locks["default"].backend
    lock(NAME).acquire().release()
    monkeypatch.setattr(MemoryBackend, "acquire", tripped)
    with pytest.raises(KeyboardInterrupt):
        lock(NAME, limit=limit).acquire()
    assert kept, "the store was not asked"
    assert not look(backend, [NAME]).locks


def test_an_interrupt_as_the_store_hands_a_lease_on_leaves_no_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acquire = MemoryBackend.acquire

    def tripped(self: MemoryBackend, *arguments: Any) -> Any:
        handed = acquire(self, *arguments)
        wire = Tripwire()  # noqa: F841
        return handed

    held = lock(NAME)
    with ExitStack() as stack:
        held.enter_in(stack)
        monkeypatch.setattr(MemoryBackend, "acquire", tripped)
        with pytest.raises(KeyboardInterrupt):
            held.transfer(ttl=60)
    assert kept, "the store was not asked"
    assert not look(locks["default"].backend, [NAME]).locks
    assert not held.locked


@pytest.mark.slow
def test_a_transfer_interrupted_at_every_line_ends_within_the_ttl_of_the_lock() -> None:
    # In a thread of its own: see `test_interrupted_at_every_line`.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_interrupt_at_every_line).result()


def _interrupt_at_every_line() -> None:
    lines, visits = Lines(), Counter[Place]()
    _transfer(lines, None)
    visits |= lines.seen
    struck = 0
    for place, times in visits.items():
        for nth in {1, times}:
            try:
                struck += _transfer(lines, (place, nth))
            except AssertionError as error:
                raise AssertionError(f"after an interrupt at {place}, time {nth}") from error
    assert struck > 100


def _transfer(lines: Lines, wanted: tuple[Place, int] | None) -> bool:
    """Interrupt the transfer of a lock with a TTL of 10 s; return whether that struck."""
    held = lock(NAME, ttl=10).acquire()
    try:
        lines.run(lambda: held.transfer(ttl=60), wanted)
    except KeyboardInterrupt:
        found = look(locks["default"].backend, [NAME]).locks
        assert all((one.ttl or 0) <= 10 for one in found)
        assert held.locked is any(one.has_quorum for one in found), "it knows whether it holds"
        assert held.release() is bool(found)
    else:
        assert held.handed_on
        assert not lines.struck
        free(locks["default"].backend, NAME)
    assert not look(locks["default"].backend, [NAME]).locks
    return lines.struck
