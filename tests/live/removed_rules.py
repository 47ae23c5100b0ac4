"""Rules that can be removed, from scripts and from our own code, to see that a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.engine import quorum
from redlock_django.engine.quorum import Tally
from redlock_django.locking.held_lease import HeldLease
from redlock_django.wire.link.master import Master
from redlock_django.wire.links import dialer
from redlock_django.wire.links.dialer import Dialer
from redlock_django.wire.links.inbox import Inbox
from redlock_django.wire.links.outbox import Planner
from redlock_django.wire.servers import info as server_info
from tests.engine import mutants
from tests.engine.mutation import Mutation, always, instead, mutated, never, returns, without
from tests.live import test_script_mutants
from tests.live.replaced_scripts import replace_scripts
from tests.live.test_script_mutants import mutated_script

guards = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
# The rule guards both drivers; with one of them, the test shows that it detects its absence.
guards_both = pytest.mark.parametrize(
    ("name", "guarded"),
    [("threads", True), ("loop", True), ("loop", False)],
    ids=["guarded-threads", "guarded-loop", "unguarded"],
)


def mutate_script(
    monkeypatch: pytest.MonkeyPatch, name: str, target: str, replacement: str
) -> None:
    """Make masters run the script `name` with a piece of its code replaced."""
    mutated = partial(mutated_script, name, target, replacement)
    mutated(name)  # raises LookupError here if the script has no such code
    replace_scripts(monkeypatch, mutated)


@contextmanager
def _script_mutated(name: str, target: str, replacement: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mutate_script(patch, name, target, replacement)
        yield


# What only real masters detect: a function and a mutation of it.
_FUNCTIONS: dict[str, tuple[Callable[..., object], Mutation]] = {
    "all must agree": (quorum.quorum, returns("masters")),
    "connecting masters are always waited for": (
        Planner.link_wait, always("usable < self._quorum"),
    ),
    "a lost link is not reported": (dialer._fail_owed, without("owed.exchange.cast(...)")),
    "a lost link stays lost": (Dialer.finish_losing, without(Dialer._dial)),
    "of several replies one is read": (Inbox._answer_all, always("not parser.has_data()")),
    "votes after the verdict are dropped": (
        Tally.cast,
        instead(
            "self._votes[master] is None",
            "not self._votes[master] and self.verdict is Verdict.PENDING",
        ),
    ),
    "a release that a busy master refused is forgotten": (
        dialer._fail_owed, without(Master.keep_release, nth=1),
    ),
    "a loading master is counted": (server_info.faults, never("info.get('loading', ...) != ...")),
    "a loop releases on its own links": (
        RedisBackend.arelease, always("lease.home is self._loops.get(...)"),
    ),
    "only masters decide that a lock is over": (HeldLease.seconds_left, never("left <= 0")),
}  # fmt: skip

# The same of scripts: name of the script, a piece of its code, what replaces it.
_SCRIPTS = {
    "an extension writes the lock again": (
        "extend", "'PEXPIRE', KEYS[2 + index], ttl", "'SET', KEYS[2 + index], ARGV[2], 'PX', ttl",
    ),
    **{name: change for name, *change in test_script_mutants.MUTANTS},
}  # fmt: skip


# Every rule that `without_rule` can remove. Where a script has the rule, its model is left alone.
RULES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **{mutant.name: mutant.active for mutant in mutants.MUTANTS},
    **{name: partial(_script_mutated, *change) for name, change in _SCRIPTS.items()},
    **{name: partial(mutated, *change, name) for name, change in _FUNCTIONS.items()},
}


def without_rule(name: str) -> AbstractContextManager[None]:
    """Remove a rule: from the script that masters run if it has the rule, else from our code."""
    return RULES[name]()
