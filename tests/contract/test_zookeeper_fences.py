"""The fences of a tree are not ahead of the servers' time when they are given."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kazoo")

from redlock_django.backends.zookeeper.fences import Fences
from redlock_django.backends.zookeeper.paths import SPAN, Tree

NOW = 1_760_000_000_000  # what the servers' clock shows, in ms


class Answered:
    """Requests that servers answer, whose base of fences is that many µs ahead of their time."""

    generation = 1

    def __init__(self, ahead: int) -> None:
        self.session = SimpleNamespace(prepared=0, note_servers_time=int)
        self.base = b"%d" % (NOW * 1000 + ahead)

    def ask(self, send: Any, *, is_write: bool = False) -> Generator[Any, None, list[Any]]:
        yield from ()
        root, locks = SimpleNamespace(mtime=NOW), SimpleNamespace(ctime=0)
        base = self.base, SimpleNamespace(version=1)
        if "_look_at_all" in repr(send):
            return [root, locks, base]
        return [root, base] if "_look" in repr(send) else [None]


@pytest.mark.parametrize(
    ("ahead", "seconds"), [(-1_000_000, 0.001), (-10, (SPAN - 9) / 1e6), (500, 0.0005)]
)
def test_a_session_waits_until_no_fence_is_ahead_of_the_servers_time(
    ahead: int, seconds: float
) -> None:
    """Otherwise the store to which a site moves next would give lower fences."""
    answered: Any = Answered(ahead)
    tree = Tree("/r")
    steps = list(Fences(answered, tree, 60).prepare())
    assert [step.seconds for step in steps] == [pytest.approx(seconds)]
    assert answered.session.prepared == 1


@pytest.mark.parametrize(
    ("ahead", "seconds"), [(-1_000_000, 0.001), (-10, (SPAN - 9) / 1e6), (500, (SPAN + 501) / 1e6)]
)
def test_a_base_that_a_lock_raises_is_waited_for(ahead: int, seconds: float) -> None:
    """A node that waited since before the last base raises it, in the middle of a session."""
    answered: Any = Answered(ahead)
    tree = Tree("/r")
    base = answered.base, SimpleNamespace(mzxid=20)
    steps = list(Fences(answered, tree, 60).of_node(10, base))
    assert [step.seconds for step in steps] == [pytest.approx(seconds)]
