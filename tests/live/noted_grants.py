"""The waiters to which releases have granted a lock, as the client counts it."""

from __future__ import annotations

from typing import Any

import pytest

from redlock_django.wire.links.waiter import Waiter, WaiterState


def note_grants(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the waiters to which a majority grants the lock from here on."""
    names: list[str] = []
    grant = Waiter.grant

    def noted(waiter: Waiter, *vote: Any) -> bool:
        must_ask = grant(waiter, *vote)
        if waiter.state is WaiterState.SENT and waiter.name not in names:
            names.append(waiter.name)
        return must_ask

    monkeypatch.setattr(Waiter, "grant", noted)
    return names
