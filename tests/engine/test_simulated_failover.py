"""One server whose place a replica takes, in the simulator: at most one holder all the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from redlock_django.engine.protocol.commands import Command
from redlock_django.wire.servers import info as server_info
from tests.engine.mutation import Mutation, mutated, never, returns
from tests.engine.simulator import Setup, Simulation
from tests.engine.world import SimulatedMaster, Violation

FAILOVERS = Setup(
    masters=1, failover=True, clients=4, busy=0.3, max_ttl=0.8, skew=0.02, ttls=(0.2, 0.8),
    every=0.7, faults=frozenset({"copy"}),
)  # fmt: skip


def test_a_promoted_replica_makes_no_second_holder() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += Simulation(seed, FAILOVERS).run()
    for state in ("grants", "fault copy", "another server", "extended early", "renewed", "lost"):
        assert seen[state], state
    assert not seen["two hold, after a step"], "and nothing excuses it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "mutation"),
    [
        pytest.param(Command.early, returns("True"), id="an untrusted server grants"),
        pytest.param(SimulatedMaster._is_named, returns("True"), id="the server is not checked"),
        pytest.param(server_info.run_of, never("copied"), id="a promotion ends no run"),
    ],
)
def test_must_fail_a_failover_without_a_rule(function: Any, mutation: Mutation) -> None:
    with mutated(function, mutation, "mutant"):
        for seed in range(60):
            try:
                Simulation(seed, FAILOVERS).run()
            except Violation as violation:
                if "hold it" in str(violation):
                    return
    pytest.fail("the mutant survives")
