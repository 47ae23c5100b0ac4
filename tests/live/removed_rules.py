"""Rules taken out, of what masters run and of our own code: to see that a test tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.engine import commands, quorum
from redlock_django.locking.renewal_service import HeldLease
from redlock_django.wire import join, link, links
from tests.engine import mutants
from tests.live import test_script_mutants

guards = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])


def bend(monkeypatch: pytest.MonkeyPatch, name: str, stands: str, put: str) -> None:
    """Have masters run a script with one rule less."""
    bent = partial(test_script_mutants.bent, name, stands, put)
    bent(name)  # fails here where the text does not stand there
    for module in (commands, join, link, links):
        monkeypatch.setattr(module, "script", bent)


# What only real masters tell: a function, or the name of a script; the text that stands there; what
# is put in its place.
_TOLD_HERE: dict[str, tuple[Any, str, str]] = {
    "all must agree": (quorum.quorum, "masters // 2 + 1", "masters"),
    "whoever may still come is waited for": (
        links.Links.hoping, "usable < need <= usable + hopeful", "True",
    ),
    "a lost link is told to nobody": (
        links.Links.lose, "owed.exchange.cast(master.index, failed(reason))", "pass",
    ),
    "a lost link stays lost": (links.Links.lose, "self._dial(master, reason, delay)", "pass"),
    "of replies that come together one is read": (
        links.Links.read, "self._answer(master, link, reply)",
        "self._answer(master, link, reply)\n            break",
    ),
    "what comes after the verdict is dropped": (
        quorum.Tally.cast, "is not None:", "is not None or self.verdict is not Verdict.PENDING:",
    ),
    "what a busy master refused is forgotten": (
        links.Links._refused, "master.keep(owed.command)", "pass",
    ),
    "a master that loads is taken": (
        join.faults, 'info.get("loading", "0") != "0"', "False",
    ),
    "an extension writes anew": (
        "extend", "'PEXPIRE', KEYS[2 + index], ttl", "'SET', KEYS[2 + index], ARGV[2], 'PX', ttl",
    ),
    "a loop frees on links of its own": (
        RedisBackend.arelease, "lease.home is self._loops.get(asyncio.get_running_loop())", "True",
    ),
    "only masters say that a lock is over": (HeldLease.remaining, "left <= 0", "False"),
}  # fmt: skip


# Every rule that `without` can take out. Where masters have a script, its model is not meant.
RULES: dict[str, tuple[Any, tuple[mutants.Bent, ...]]] = {
    **{mutant.name: (mutant.function, mutant.bends) for mutant in mutants.MUTANTS},
    **{name: (of, ((old, new),)) for name, of, old, new in test_script_mutants.MUTANTS},
    **{name: (of, ((old, new),)) for name, (of, old, new) in _TOLD_HERE.items()},
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take a rule out: of what masters run, where it is theirs, and of our own code."""
    what, bends = RULES[name]
    with ExitStack() as stack:
        if isinstance(what, str):
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for stands, put in bends:
                bend(patch, what, stands, put)
        else:
            stack.enter_context(mutants.bent(name, what, bends))
        yield
