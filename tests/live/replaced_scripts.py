"""Scripts that masters run instead of those of the package."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from typing import TYPE_CHECKING

from redlock_django.engine.protocol import commands
from tests.engine.lua_mutation import replace_scripts

if TYPE_CHECKING:
    import pytest

    from redlock_django.engine.protocol.deployment import Deployment


def lengthen_turns(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Make turns last longer than a busy machine stops a waiter that was called."""
    original, turn = commands.script, "local TURN, LINGER = "

    @cache
    def with_long_turns(name: str, deployment: Deployment, **how: bool) -> tuple[str, str]:
        text = original(name, deployment, **how)[0].replace(
            f"{turn}100000,", f"{turn}{seconds * 1_000_000},"
        )
        assert (turn in text) is (name in ("acquire", "release"))
        assert f"{turn}100000," not in text
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    replace_scripts(monkeypatch, with_long_turns)
