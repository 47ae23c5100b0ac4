"""Promise 5: while a majority is up, a client acquires the lock soon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.engine.steps import Pause
from tests.engine.clients import Program
from tests.engine.simulator import Setup, Simulation

QUIET = Setup(clients=4, seconds=3.0, busy=0.02, ttls=(0.2, 0.5))


def _first_grant(simulation: Simulation) -> float:
    """Return the true seconds until the first grant."""
    while not simulation.world.seen["grants"]:
        simulation.world.run(simulation.world.now + 0.001)
        assert simulation.world.now < simulation.setup.seconds, "no client acquires the lock"
    return simulation.world.now


@pytest.mark.parametrize(("masters", "dead"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (7, 3)])
def test_a_client_wins_while_a_majority_is_up(masters: int, dead: int) -> None:
    for seed in range(3):
        simulation = Simulation(seed, replace(QUIET, masters=masters, dead=dead))
        assert _first_grant(simulation) < 0.5
        simulation.run()
        assert simulation.world.seen["grants"] > 8


@pytest.mark.parametrize(("masters", "hung"), [(3, 1), (5, 2), (7, 3)])
def test_hung_masters_cost_at_most_one_timeout(masters: int, hung: int) -> None:
    for seed in range(3):
        simulation = Simulation(seed, replace(QUIET, masters=masters, clients=1))
        simulation.world.run(0.01)
        for master in simulation.masters[:hung]:
            master.hang()
        assert _first_grant(simulation) < 0.01 + simulation.setup.master_timeout + 0.1
        simulation.run()


@pytest.mark.parametrize(("masters", "dead"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_client_does_not_win_without_a_majority(masters: int, dead: int) -> None:
    simulation = Simulation(0, replace(QUIET, masters=masters, dead=dead))
    simulation.world.run(3.0)
    assert simulation.world.seen["grants"] == 0
    assert simulation.world.seen["unreachable"] > 0
    assert simulation.world.seen["locked"] == 0, "a missing quorum must not look like a lock"


def test_time_goes_on_when_the_rest_of_a_wait_is_too_short_to_move_a_clock() -> None:
    simulation = Simulation(0, replace(QUIET, clients=1, busy=1e9))
    (client,) = simulation.clients
    simulation.world.run(1.0)  # at 0.0 any pause moves the clock
    shown = [client.read()]

    def resting() -> Program:
        for _ in range(3):
            yield Pause(1e-18)
            shown.append(client.read())

    client._program.close()
    client.start(resting())
    simulation.world.run(1.01)
    assert shown[-1] > shown[0]


@pytest.mark.slow
def test_a_crowd_shares_one_resource() -> None:
    simulation = Simulation(1, replace(QUIET, masters=5, clients=12, seconds=8.0))
    simulation.run()
    assert len(simulation.checker.holders) == 12, "not every client held it"
    assert simulation.world.seen["grants"] > 30


@pytest.mark.parametrize("wrong", [0.0, 100.0])
def test_waiters_that_come_at_once_over_a_slow_network_soon_agree_on_the_first(
    wrong: float,
) -> None:
    """They come in the same microsecond, or with clocks so wrong that no master trusts them."""
    for seed in range(15):
        setup = Setup(
            masters=4, clients=5, seconds=30.0, latency=0.017, master_timeout=0.5,
            ttls=(2.0, 2.0), busy=1e9, wrong_walls=wrong, drifting=True,
        )  # fmt: skip
        simulation = Simulation(seed, setup)
        simulation.world.run(1.0)
        simulation._ask_once(wait=20.0)
        while not simulation.checker.holders:
            simulation.world.run(simulation.world.now + 0.01)
            assert simulation.world.now < 1.6, f"seed {seed}: no client holds it"


def test_a_killed_holder_is_followed_after_its_ttl_and_not_before() -> None:
    setup = replace(QUIET, clients=2, ttls=(0.5, 0.5), busy=0.001)
    killed = 0
    for seed in range(10):
        simulation = Simulation(seed, setup)
        _first_grant(simulation)
        holder = next(client for client in simulation.clients if client.lease)
        assert holder.lease is not None
        until = holder.clock.when(holder.lease.until)
        holder.kill()
        before = simulation.world.seen["grants"]
        simulation.world.run(until)
        assert simulation.world.seen["grants"] == before
        simulation.world.run(until + 0.5)
        killed += simulation.world.seen["grants"] > before
    assert killed > 5, "the other client seldom acquired it"
