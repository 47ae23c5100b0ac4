"""Locks that clients hand on to each other, simulated under every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.engine.simulator import Setup, Simulation, replay

RARE = (
    "handed on", "taken", "not taken: TicketUsed", "not taken: LockLost",
    "not taken: QuorumUnreachable", "not handed on: LockLost",
    "not handed on: QuorumUnreachable", "interrupted handing on", "took too late", "healed",
)  # fmt: skip


def handing(seed: int) -> Setup:
    """Return the setup of a seed in which clients hand on more than half of their locks."""
    return replace(Simulation(seed).setup, hands_on=0.6, change="")


def run(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds; fail with the transcript of the first one that breaks a promise."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, handing(seed))
        try:
            seen += simulation.run()
        except AssertionError as violation:
            lines = replay(seed, handing(seed)).splitlines()
            pytest.fail("\n".join([*lines[:1], "...", *lines[-300:], str(violation)]))
    return seen


@pytest.mark.slow
def test_no_seed_breaks_a_promise() -> None:
    seen = run(range(30))
    more = iter(range(30, 120))
    while missing := [state for state in RARE if not seen[state]]:
        seed = next(more, None)
        assert seed is not None, missing
        seen += run([seed])


@pytest.mark.nightly
def test_none_of_many_seeds_breaks_a_promise() -> None:
    seen = run(range(1000, 3000))
    assert all(seen[state] for state in RARE)


def test_the_setup_of_a_failing_seed_can_be_given_to_the_command() -> None:
    assert Setup.read(handing(3).spelled()) == handing(3)
