"""Rules that can be removed, from scripts and from our own code, to see that a test fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.engine import quorum
from redlock_django.engine.quorum import Tally
from redlock_django.locking.lease import HeldLease
from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.links.link_changes import LinkWait
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.servers import info as server_info
from tests.engine.lua_mutation import lua, script_mutated
from tests.engine.mutants import all_mutants
from tests.engine.mutation import Mutation, always, instead, mutated, never, returns, without

guards = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
# The rule guards both drivers; with one of them, the test shows that it detects its absence.
guards_both = pytest.mark.parametrize(
    ("name", "guarded"),
    [("threads", True), ("loop", True), ("loop", False)],
    ids=["guarded-threads", "guarded-loop", "unguarded"],
)


# What only real masters detect: a function and a mutation of it.
_FUNCTIONS: dict[str, tuple[Callable[..., object], Mutation]] = {
    "all must agree": (quorum.quorum, returns("masters")),
    "connecting masters are always waited for": (
        LinkWait.seconds, always("usable < self._quorum"),
    ),
    "a lost link is not reported": (Master.fail_owed, without("owed.exchange.cast(...)")),
    "a lost link stays lost": (Sockets._come_and_go, without(Sockets._dial)),
    "of several replies one is read": (Replies._answer_all, always("not parser.has_data()")),
    "votes after the verdict are dropped": (
        Tally.cast,
        instead(
            "self.votes[master] is None",
            "not self.votes[master] and self.verdict is Verdict.PENDING",
        ),
    ),
    "a release that a busy master refused is forgotten": (
        Master.fail_owed, without(Master.keep_release, nth=1),
    ),
    "a loading master is counted": (server_info.faults, never("info.get('loading', ...) != ...")),
    "a loop releases on its own links": (
        RedisBackend.arelease, always("lease.home is self._loops.get(...)"),
    ),
    "only masters decide that a lock is over": (HeldLease.seconds_left, never("left <= 0")),
}  # fmt: skip

_WRITES_AGAIN = lua("'PEXPIRE', KEYS[2 + index], ttl", "'SET', KEYS[2 + index], ARGV[2], 'PX', ttl")

# Every rule that `without_rule` can remove.
RULES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **{name: mutant.active for name, mutant in all_mutants().items()},
    "an extension writes the lock again": partial(script_mutated, "extend", _WRITES_AGAIN),
    **{name: partial(mutated, *change, name) for name, change in _FUNCTIONS.items()},
}


def without_rule(name: str) -> AbstractContextManager[None]:
    """Remove a rule, from the scripts that masters run or from our code."""
    return RULES[name]()
