"""Signals: receivers of any kind are called, may fail, and never break a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.dispatch import Signal

from redlock_django import signals
from redlock_django.exceptions import QuorumUnreachable, ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytestmark = pytest.mark.usefixtures("memory")
R = "order:1"


def test_every_signal_is_documented() -> None:
    names = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert len(names) == 8
    assert all(f"`{name}`" in (signals.__doc__ or "") for name in names)


def test_a_refusal_carries_the_error_and_the_holder(
    settings: Settings, hear: Callable[..., list[dict[str, Any]]]
) -> None:
    seen = hear(signals.lock_refused)
    backend: Any = locks["default"].backend
    backend.acquire((R,), 10, 0, "{}")
    with pytest.raises(ResourceLocked) as locked:
        lock(R, holder={"path": "/pay/"}).acquire()
    backend.down[:] = [True]
    with pytest.raises(QuorumUnreachable) as missing:
        lock(R).acquire()
    assert [arguments["error"] for arguments in seen] == [locked.value, missing.value]
    assert seen[0]["holder"] == {"path": "/pay/"}
    assert seen[1]["reason"] == str(missing.value)


def test_a_receiver_may_take_locks_itself() -> None:
    taken = []

    def audit(resources: tuple[str, ...], **_: Any) -> None:
        if not resources[0].startswith("audit:"):
            with lock(f"audit:{resources[0]}") as held:
                taken.append(held.locked)

    signals.lock_acquired.connect(audit)
    signals.lock_released.connect(audit)
    with lock(R):
        pass
    assert taken == [True, True]
