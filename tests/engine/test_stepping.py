"""Clocks that step in the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine import simulator
from tests.engine.simulator import KINDS, STEPS, Setup, Simulation, replay
from tests.engine.world import EPOCH, Clock, SimulatedMaster, World


def test_a_clock_knows_how_far_it_was_ahead_and_behind() -> None:
    world = World(0)
    clock = Clock(world, 100.0, 1.0)
    for when, seconds in ((1.0, 3.0), (2.0, -1.0), (3.0, 2.0), (4.0, -5.0)):
        world.run(when)
        clock.step(seconds)
    assert clock.read() == 103.0
    assert clock.when(104.0) == 5.0
    assert (clock.rose(0.0), clock.rose(2.0), clock.rose(3.5)) == (4.0, 2.0, 0.0)
    assert (clock.fell(0.0), clock.fell(1.5)) == (5.0, 5.0)


@pytest.mark.parametrize("cleans", [True, False])
def test_a_key_that_expires_while_a_clock_is_ahead_may_be_gone_when_it_is_back(
    cleans: bool,
) -> None:
    world = World(0)
    simulation = Simulation(0, Setup(clients=1))
    master = SimulatedMaster(world, 0, simulation.deployment, Clock(world, EPOCH, 1.0))
    master.memory.keyspace.set(master.deployment.lock("r"), b"a {}", 1000)
    master.step(5.0, cleans=cleans)
    master.step(-5.0, cleans=cleans)
    assert bool(master.locks()) is not cleans


def test_new_kinds_of_faults_change_no_other_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping = next(s for s in range(50) if Simulation(s).setup.faults.intersection(STEPS))
    steady = next(s for s in range(50) if not Simulation(s).setup.faults.intersection(STEPS))
    transcripts = {seed: replay(seed) for seed in (stepping, steady)}
    monkeypatch.setattr(simulator, "STEPS", ())
    assert replay(steady) == transcripts[steady]
    assert replay(stepping) != transcripts[stepping]
    without = Simulation(stepping).setup
    monkeypatch.undo()
    drawn = Simulation(stepping).setup
    assert drawn.faults.intersection(KINDS) == without.faults.intersection(KINDS)
    assert replace(drawn, faults=without.faults) == without
