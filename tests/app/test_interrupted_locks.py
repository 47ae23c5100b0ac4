"""An interrupt between the store and the lock: no lock is left that nobody releases."""

from __future__ import annotations

import _thread
import signal
import weakref
from collections.abc import Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock, locks
from redlock_django.backends.memory.backend import MemoryBackend

if TYPE_CHECKING:
    from pytest_django import Settings

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
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}}
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
    assert not backend.look([NAME]).locks
