"""Locks over several groups of masters, under every fault: `backends/groups.py`, simulated."""

from __future__ import annotations

import pytest

from tests.engine import sweep as many
from tests.engine.shrink import shrunk
from tests.engine.simulator import Setup, Simulation, main, replay, sweep

SEEDS = {2: range(20), 3: range(100, 110)}  # for so many groups


@pytest.mark.slow
@pytest.mark.parametrize("several", SEEDS)
def test_no_seed_over_several_groups_breaks_a_promise(several: int) -> None:
    seen, failing = sweep(SEEDS[several], several)
    if failing:
        seed = min(failing)
        lines = replay(*shrunk(seed, Simulation(seed, groups=several).setup)).splitlines()
        pytest.fail("\n".join([*lines[:1], "...", *lines[-400:], f"all that failed: {failing}"]))
    rare = (
        "several groups", "handed over", "renewed", "unknown", "lost", "woken", "unreachable",
        "interrupted with grants out", "interrupted releasing",
    )  # fmt: skip
    assert [state for state in rare if not seen[state]] == []


def test_the_command_that_replays_a_seed_names_the_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = replay(3, groups=2)
    assert told.endswith("uv run python -m tests.engine.simulator --seed 3 --groups 2")
    assert told != replay(3)
    assert main(["--seed", "3", "--groups", "2"]) == 0
    assert capsys.readouterr().out == told + "\n"
    setup = Simulation(3, groups=2).setup
    assert Setup.read(setup.spelled()) == setup
    assert replay(3, setup).splitlines()[:-1] == told.splitlines()[:-1]


def test_many_seeds_over_several_groups_are_others(capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for several in ("1", "2", "3"):
        arguments = ["--first", "3", "--seeds", "1", "--jobs", "1", "--groups", several]
        assert many.main(arguments) == 0
        digests.add(capsys.readouterr().out.splitlines()[-1])
    assert len(digests) == 3


# Directed: what only somebody who looks at the clock can tell.

QUIET = Setup(groups=2, clients=3, busy=1e9)  # nobody asks by himself


def _first_and_second(simulation: Simulation) -> tuple[str, str]:
    """A resource of the group that everybody asks first, and one of the other."""
    identity = simulation.terms.groups.__getitem__
    first, second = sorted(range(2), key=identity)
    return simulation.shares[first][0], simulation.shares[second][0]


def _wait_is_kept() -> None:
    """The second group's wait is what the first one's has left of it."""
    for seed in range(3):
        simulation = Simulation(seed, QUIET)
        world, (holder, other, waiter) = simulation.world, simulation.clients
        first, second = _first_and_second(simulation)
        world.run(0.1)
        holder.start(holder.once((first,), 2.0, 0.0, 0.8))
        other.start(other.once((second,), 2.0, 0.0, 1.9))
        world.run(0.15)
        waiter.start(waiter.once((second, first), 2.0, 1.0, 0.01))
        world.run(1.1)
        assert waiter.name in simulation.judge.asking, "it gave up too early"
        world.run(1.3)
        assert waiter.name not in simulation.judge.asking, "it waits for longer than it wanted"
        assert world.seen["handed over"] == 1, "it never came to the second group"


def _enough_is_left() -> None:
    """However long a group was waited for, what is taken then has its time before it."""
    for seed, hold in enumerate((0.2, 0.4, 0.7, 0.9, 1.2, 1.6)):
        simulation = Simulation(seed, QUIET)
        world, (holder, _, waiter) = simulation.world, simulation.clients
        first, second = _first_and_second(simulation)
        world.run(0.1)
        holder.start(holder.once((second,), 2.0, 0.0, hold))
        world.run(0.15)
        waiter.start(waiter.once((first, second), 1.0, 5.0, 0.5))
        while waiter.name not in simulation.judge.holders:
            world.run(world.now + 0.001)
            assert world.now < 3.0, "it never gets what it waits for"
        lease = waiter.lease
        assert lease is not None
        assert lease.until - waiter.clock.read() > 0.45


def test_a_wait_is_that_for_all_groups_together() -> None:
    _wait_is_kept()


def test_who_waited_for_a_group_has_half_of_its_ttl_left() -> None:
    _enough_is_left()
