"""Servers that lose a part of their memory without a restart, in the simulator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from redlock_django.wire.servers import info as server_info
from tests.engine.lua_mutation import Lua, lua
from tests.engine.mutation import Mutation, mutated, never
from tests.engine.network import Wire
from tests.engine.simulator import SERVERS, Setup, Simulation
from tests.engine.world import Violation

EVICTING = Setup(
    clients=4, busy=0.02, max_ttl=0.8, skew=0.02, ttls=(0.6, 0.8), inspected=0.05, every=1.0,
    faults=frozenset({"evict"}),
)  # fmt: skip


def forgetting(seed: int, kind: str) -> Simulation:
    return Simulation(seed, replace(EVICTING, faults=frozenset({kind})))


@pytest.mark.parametrize("kind", SERVERS)
def test_a_part_of_the_memory_that_is_lost_makes_no_second_holder(kind: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(7, 10):
        seen += forgetting(seed, kind).run()
    for state in ("grants", f"fault {kind}", "given up for its INFO"):
        assert seen[state], state
    assert bool(seen["answered by an error"]) is (kind == "copy"), "from a replica"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "mutation", "kind", "named"),
    [
        pytest.param(*mutant, id=name)
        for name, mutant in {
            "a copy has the run of its server": (server_info.run_of, never("copied"), "copy", 7),
            "evictions end no run": (
                server_info.run_of, never("evicted.isdecimal()"), "evict", 60,
            ),
            "evicting servers vote": (
                server_info.faults, never("may_evict(info)"), "evict", 11,
            ),
            "a marker is good for any run": (
                "join", lua("was ~= run", "false"), "evict", 22,
            ),
            "INFO is never read again": (
                Wire.begin, never("now - line.link.inspected > self.inspected"), "evict", 11,
            ),
        }.items()
    ],
)  # fmt: skip
def test_must_fail_servers_that_forget_without_a_rule(
    function: Any, mutation: Mutation | Lua, kind: str, named: int
) -> None:
    with mutated(function, mutation, "mutant"):
        # The named seed detects it today; after a change of the simulator, one of the next will.
        for seed in range(named, named + 30):
            try:
                forgetting(seed, kind).run()
            except Violation as violation:
                if "hold it" in str(violation):
                    return
    pytest.fail("the mutant survives")
