"""Scripts that masters run instead of those of the package."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from typing import TYPE_CHECKING

from redlock_django.engine.protocol import commands
from redlock_django.wire.link import resp
from redlock_django.wire.links import inbox
from redlock_django.wire.servers import handshake as join

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def replace_scripts(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[str], tuple[str, str]]
) -> None:
    """Make masters run the scripts that a function returns by name, with their hashes."""

    def replaced(name: str, failover: bool = False) -> tuple[str, str]:
        assert not failover
        return script(name)

    for module in (inbox, commands, join, resp):
        monkeypatch.setattr(module, "script", replaced)


def lengthen_turns(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Make turns last longer than a busy machine stops a waiter that was called."""
    turn = "local TURN, LINGER = "
    _replace(monkeypatch, f"{turn}100000,", f"{turn}{seconds * 1_000_000},")


def lengthen_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make offers last for a minute: longer than a busy machine stops a waiter before a release."""
    fresh = "local FRESH, FRESHEST = "
    _replace(monkeypatch, f"{fresh}0.1, 1000000", f"{fresh}1000, 60000000")


def _replace(monkeypatch: pytest.MonkeyPatch, code: str, replacement: str) -> None:
    """Replace a piece of the code of queues."""
    original = commands.script

    @cache
    def replaced(name: str) -> tuple[str, str]:
        text = original(name)[0]
        assert (code in text) is (name in ("acquire", "acquire_slot", "release"))
        text = text.replace(code, replacement)
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    replace_scripts(monkeypatch, replaced)
