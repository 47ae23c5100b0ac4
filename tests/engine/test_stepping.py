"""Clocks that step: clients notice every step they can, and steps excuse no other violation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.wire.links import late_masters as lateness
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.master import Master
from tests.engine import simulator
from tests.engine.mutants import all_mutants
from tests.engine.network import Wire
from tests.engine.simulator import KINDS, STEPS, Setup, Simulation, replay
from tests.engine.world import EPOCH, Clock, SimulatedMaster, Violation, World

STEPPING = Setup(clients=3, busy=0.05, every=0.5, faults=frozenset(STEPS))


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
    simulation = Simulation(0, replace(STEPPING, clients=1))
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


# The rules of the watch, each removed: the simulator must detect it.

LEAPING = replace(STEPPING, busy=0.02, ttls=(1.0, 2.0), every=0.3, faults=frozenset({"leap"}))
NARROW = replace(STEPPING, skew=0.005, latency=0.0005, drifting=True, busy=1.0, seconds=20.0)
FOUND = {
    # name: setup, what the failure says, the first seed that fails
    "clocks may step": (STEPPING, "does not notice", 0),
    "the step is not marked": (STEPPING, "suspected for ever", 0),
    "our own step is the masters'": (STEPPING, "still believes", 6),
    "voided by the clock that went back": (LEAPING, "still believes", 22),
    "drift is a step": (NARROW, "but has not", 0),
}


def _found(setup: Setup, how: str, first: int) -> int:
    """Return the first seed that detects it; after a change of the simulator, it is another one."""
    for seed in range(first, first + 40):
        try:
            Simulation(seed, setup).run()
        except Violation as violation:
            if how in str(violation):
                return seed
    pytest.fail("it survives 40 seeds")


@pytest.mark.parametrize("name", FOUND)
def test_a_missing_rule_is_detected(name: str) -> None:
    setup, how, first = FOUND[name]
    with all_mutants()[name].active():
        seed = _found(setup, how, first)
    Simulation(seed, setup).run()  # passes without the mutant


def test_leases_that_nothing_voids_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepWatch, "void", lambda self, lease: False)
    seed = _found(LEAPING, "still believes", 5)
    monkeypatch.undo()
    Simulation(seed, LEAPING).run()


def test_a_mark_that_is_forgotten_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this seed one client never counts a majority of its masters again."""
    setup = Setup(
        masters=5, clients=2, resources=2, ttls=(0.2, 0.5), two=0.3, latency=0.01,
        master_timeout=0.03, give_up=0.12, late=0.04, drifting=True, wrong_walls=100.0,
        off_masters=0.0, faults=frozenset({"lag", "leap", "reset"}), every=0.1,
    )  # fmt: skip
    # The seed was found when late replies were waited for no longer than MASTER_TIMEOUT.
    monkeypatch.setattr(lateness, "LONGEST", 1)
    check = Wire._check

    def forgets(self: Wire, master: Master, mode: str) -> None:
        master.check_mode = mode
        check(self, master, mode)

    Simulation(1043, setup).run()
    monkeypatch.setattr(Wire, "_check", forgets)
    with pytest.raises(Violation, match=r"although all faults have ended|suspected for ever"):
        Simulation(1043, setup).run()


@pytest.mark.parametrize("seed", [207841, 216990])
def test_no_lease_outlives_a_clock_that_went_back(seed: int) -> None:
    """In these seeds it went back within a round, or after all masters had restarted."""
    assert Simulation(seed).run()["stepped against a majority"]
