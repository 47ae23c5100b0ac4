"""The fences of a tree: a base, and the transactions since it was set."""

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
        self.session = SimpleNamespace(
            prepared=0, note_servers_time=int, tree=Tree("/r"), settings=SimpleNamespace(max_ttl=60)
        )
        self.base = NOW * 1000 + ahead
        self.raised = 0

    def ask(self, send: Any, *, is_write: bool = False) -> Generator[Any, None, list[Any]]:
        yield from ()
        root, locks = SimpleNamespace(mtime=NOW), SimpleNamespace(ctime=0)
        base = b"%d" % self.base, SimpleNamespace(version=1)
        if "_look_at_all" in repr(send):
            return [root, locks, base]
        if "_look" in repr(send):
            return [root, base]
        self.raised, self.base = self.raised + 1, int(send.args[1])
        return [None]


@pytest.mark.parametrize(
    ("ahead", "seconds", "raised"),
    [(-1_000_000, 0.001, 1), (-10, (SPAN - 9) / 1e6, 1), (500, 0.0005, 0)],
)
def test_a_session_waits_until_no_fence_is_ahead_of_the_servers_time(
    ahead: int, seconds: float, raised: int
) -> None:
    """Otherwise the store to which a site moves next would give lower fences."""
    answered: Any = Answered(ahead)
    steps = list(Fences(answered).prepare())
    assert [step.seconds for step in steps] == [pytest.approx(seconds)]
    assert answered.session.prepared == 1
    assert answered.raised == raised
    assert answered.base > NOW * 1000, "a store used before may have given fences up to now"


@pytest.mark.parametrize(
    ("ahead", "seconds"), [(-1_000_000, 0.001), (-10, (SPAN - 9) / 1e6), (500, (SPAN + 501) / 1e6)]
)
def test_a_base_is_above_all_fences_before_it_and_is_waited_for(ahead: int, seconds: float) -> None:
    answered: Any = Answered(ahead)
    fences = Fences(answered)
    last = fences.of(20 + SPAN, (b"%d" % answered.base, SimpleNamespace(mzxid=20)))
    steps = list(fences.raise_base())
    assert [step.seconds for step in steps] == [pytest.approx(seconds)]
    assert last is not None
    assert last < answered.base


@pytest.mark.parametrize(
    ("transaction", "fence"),
    [
        (51, 1001),
        (50 + SPAN, 1000 + SPAN),
        (51 + SPAN, None),  # such as after an election
        (50, None),
        (49, None),  # the base was raised since
    ],
)
def test_a_fence_is_the_base_plus_the_transactions_since(
    transaction: int, fence: int | None
) -> None:
    answered: Any = Answered(0)
    base = b"1000", SimpleNamespace(mzxid=50)
    assert Fences(answered).of(transaction, base) == fence
