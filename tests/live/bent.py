"""Scripts with one rule less, as masters run them: to see that a test tells."""

from __future__ import annotations

from hashlib import sha1

import pytest

from redlock_django.engine import commands
from redlock_django.wire import join, link, links

guards = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])


def bend(monkeypatch: pytest.MonkeyPatch, name: str, stands: str, put: str) -> None:
    """Have masters run a script with one rule less."""
    text, _ = commands.script(name)
    assert text.count(stands) == 1
    bent = text.replace(stands, put)
    digest = sha1(bent.encode(), usedforsecurity=False).hexdigest()
    real = commands.script
    for module in (commands, join, link, links):
        monkeypatch.setattr(module, "script", lambda of: (bent, digest) if of == name else real(of))
