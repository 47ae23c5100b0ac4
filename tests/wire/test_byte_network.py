"""The core over a network of bytes that are late, cut, lost, repeated or of another connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from tests.engine.mutation import Mutation, instead, mutated, never, without
from tests.wire.byte_network import Network

SECONDS = 20.0
FAILURES = (AssertionError, LookupError, RuntimeError, TypeError)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("redlock_django")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("seed", range(10))
def test_one_client_holds_the_lock_whatever_happens_to_bytes(seed: int) -> None:
    network = Network(seed)
    network.run(SECONDS)
    assert network.seen["acquired"] > 5, network.seen
    assert all(network.seen[fault] for fault in ("late", "cut", "lost"))


@pytest.mark.parametrize("seed", range(10))
def test_a_reply_that_belongs_to_no_command_is_not_a_vote(seed: int) -> None:
    network = Network(seed, foreign=0.05)
    network.run(SECONDS)
    assert network.seen["acquired"] > 5, network.seen
    assert network.seen["foreign"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_are_only_cut_cost_no_link_and_no_vote(seed: int) -> None:
    network = Network(seed, faults=False)
    network.run(SECONDS)
    assert network.seen["cut"] > 100
    assert not network.seen["links gone"]


RULES: dict[str, tuple[Callable[..., object], Mutation]] = {
    "every reply has its round's number": (Replies.feed, never("number != oldest.number")),
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
def test_without_a_rule_of_the_core_a_run_fails(rule: str) -> None:
    function, mutation = RULES[rule]
    with mutated(function, mutation, rule):
        for seed in range(6):
            try:
                test_bytes_that_are_only_cut_cost_no_link_and_no_vote(seed)
                Network(seed, foreign=0.05 * (seed % 2)).run(SECONDS)
            except FAILURES:
                return
    raise AssertionError(f"{rule}: removed, and every run passes")
