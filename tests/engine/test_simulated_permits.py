"""Names that several clients may hold at once, simulated under every fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine import sweep as many
from tests.engine.oversubscription import Load, rounds, share
from tests.engine.shrink import shrunk
from tests.engine.simulator import Setup, Simulation, main, replay, sweep_until_reached
from tests.engine.test_fairness import MISSED, TURNS, crowd, run_disturbed

SEEDS = range(8)
MORE = range(8, 60)
RARE = (
    "permits all held", "refused as all slots are taken", "split votes", "woken",
    "confirm rounds", "renewed", "healed", "lost", "unreachable", "killed holding",
    "interrupted with grants out", "granted after the refusal", "kept release",
)  # fmt: skip


@pytest.mark.slow
def test_no_seed_breaks_a_promise() -> None:
    seen, failing = sweep_until_reached(RARE, SEEDS, MORE, permits=True)
    if failing:
        seed = min(failing)
        lines = replay(*shrunk(seed, Simulation(seed, permits=True).setup)).splitlines()
        pytest.fail("\n".join([*lines[:1], "...", *lines[-400:], f"all that failed: {failing}"]))
    assert [state for state in RARE if not seen[state]] == []


def test_the_command_that_replays_a_seed_names_the_permits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    transcript = replay(3, permits=True)
    assert transcript.endswith("uv run python -m tests.engine.simulator --seed 3 --permits")
    assert transcript != replay(3)
    assert main(["--seed", "3", "--permits"]) == 0
    assert capsys.readouterr().out == transcript + "\n"
    setup = Simulation(3, permits=True).setup
    assert Setup.read(setup.spelled()) == setup
    assert replay(3, setup).splitlines()[:-1] == transcript.splitlines()[:-1]


@pytest.mark.slow
def test_a_sweep_with_permits_has_another_digest(capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for variant in ((), ("--permits",)):
        assert many.main(["--first", "3", "--seeds", "1", "--jobs", "1", *variant]) == 0
        digests.add(capsys.readouterr().out.splitlines()[-1])
    assert len(digests) == 2


@pytest.mark.slow
def test_calls_that_do_not_wait_end_in_two_rounds_where_many_ask_for_few_slots() -> None:
    """Hardly any takes three, although a slot is rarely free and several see it come free."""
    granted, refused = rounds(Load(8, 3, 0.01, 0.02), 1.0)
    for calls in (granted, refused):
        assert calls.total() > 100
        assert share(calls, 1) > 0.4
        assert share(calls, 2) > 0.95
        assert max(calls) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2, 3])
def test_waiters_for_slots_are_served_in_order_and_do_not_wait_for_the_fallback(limit: int) -> None:
    """Waiters with turns for different slots at the same moment may learn of them in any order."""
    for seed in range(2):
        simulation = run_disturbed(crowd(seed, replace(TURNS, clients=8, limit=limit)))
        checker = simulation.checker
        assert len(checker.holders) == 8
        assert len(checker.gaps) > 100
        assert checker.overtaken <= limit, f"seed {seed}"
        assert max(checker.gaps) < 0.03, f"seed {seed}"


@pytest.mark.slow
def test_the_turn_of_a_dead_waiter_passes_on() -> None:
    for seed in range(2):
        simulation = crowd(seed, replace(TURNS, clients=12, limit=2, ttls=(0.2, 0.2)))

        def kill_a_waiter(simulation: Simulation = simulation) -> None:
            resting = [client for client in simulation.living if client.is_resting]
            if len(resting) > 3:
                simulation.world.rng("killing").choice(resting).kill()

        run_disturbed(simulation, kill_a_waiter)
        assert simulation.world.seen["killed"] > 2
        assert max(simulation.checker.gaps) < MISSED, f"seed {seed}"
