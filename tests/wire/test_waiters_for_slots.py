"""Waiters for one of several slots of a name: what a call names, and which of them ask."""

from __future__ import annotations

import pytest

from redlock_django.engine.protocol.commands import Acquire, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.clock import clock
from redlock_django.wire.links.resp import Templates, pack_command
from redlock_django.wire.links.waiters import Waiters

DEPLOYMENT = Deployment(names=("a", "b", "c"))


def test_a_call_names_a_slot() -> None:
    waiters = Waiters(DEPLOYMENT, clock)
    waiter = waiters.new()
    name = waiter.name.encode()
    assert waiters.call(name + b"/2", 0)
    assert waiter.called_slot == 2
    assert not waiters.call(name + b"/x", 1)
    assert not waiters.call(b"another/2", 1)
    assert not waiter.decided
    assert waiters.call(name + b"/1", 1)
    assert waiter.decided


def test_a_round_ends_what_a_call_has_named() -> None:
    waiters = Waiters(DEPLOYMENT, clock)
    waiter = waiters.new()
    waiters.call(waiter.name.encode() + b"/2", 0)
    waiter.ask()
    assert waiter.called_slot is None


@pytest.mark.parametrize("waiter", ["", "P:wake:7 1"])
@pytest.mark.parametrize("calls", [True, False])
def test_templates_write_the_commands_of_a_slot(waiter: str, calls: bool) -> None:
    """The queue is that of the name, so a slot's release has more gaps than that of a lock."""
    templates = Templates()
    for resource in ("r[1]", "s[2]", "r[1]", "exam"):
        for digit in "ab":
            value = f"{digit * 32} {{}}"
            acquire = Acquire(DEPLOYMENT, (resource,), value, 5.0, 7, waiter, 5, limit=3)
            release = Release(DEPLOYMENT, (resource,), value, waiter=waiter, calls=calls, limit=3)
            plain = Release(DEPLOYMENT, (resource[:4],), value, waiter=waiter, calls=calls)
            for command in (plain, release, acquire):
                if not (command is plain and "[" in resource):
                    assert templates.pack(command, 7) == pack_command(command, 7)
