"""The core that is shipped, in the simulator: its bytes are late, cut, lost or delivered twice."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from tests.engine.mutation import Mutation, instead, mutated, never, without
from tests.engine.simulator import KINDS, Setup, Simulation


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("redlock_django")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


FAILURES = (AssertionError, LookupError, RuntimeError, TypeError)
CALM = Setup(over_bytes=True)
HUNG = replace(CALM, faults=frozenset({"hang", "lag"}), seconds=3.0)
STRUCK = replace(CALM, faults=frozenset(KINDS), stalls=0.01, strikes=0.02)


def run(seeds: Iterable[int], setup: Setup | None = None) -> Counter[str]:
    """Run seeds over bytes, by default with what they draw; return the states reached."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        drawn = setup or replace(Simulation(seed).setup, over_bytes=True)
        seen += Simulation(seed, drawn).run()
    return seen


def test_promises_hold_whatever_happens_to_bytes() -> None:
    seen = run(range(10), STRUCK) + run(range(10))
    for state in ("grants", "renewed", "bytes cut", "replies repeated", "link lost", "called"):
        assert seen[state] > 10, state


def test_bytes_that_are_only_cut_cost_no_link() -> None:
    seen = run(range(3), CALM)
    assert seen["bytes cut"] > 100
    assert not seen["link lost"]


RULES: dict[str, tuple[Callable[..., object], Mutation]] = {
    "every reply has its round's number": (Replies._count_plain, never("number != oldest.number")),
    "a late reply costs its vote": (LateWatch.fail_late, without("exchange.cast(...)")),
    "a lost link fails the votes that it owes": (
        Master.fail_owed, without("owed.exchange.cast(...)"),
    ),
    "a reply that is cut is counted with its rest": (
        Replies._parse, instead("return", "return link.received.clear()"),
    ),
    "a master that may have a fault is looked at": (Links.begin, never("not m.usable")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_of_the_core_a_seed_fails(rule: str) -> None:
    function, mutation = RULES[rule]
    with mutated(function, mutation, rule):
        for seed in range(30):
            try:
                test_bytes_that_are_only_cut_cost_no_link()
                run([seed], HUNG)
                run([seed], STRUCK)
            except FAILURES:
                return
    raise AssertionError(f"{rule}: removed, and every seed passes")
