"""Promises 1, 2 and 4 under every fault of the simulator, and proof that it detects violations."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from redlock_django.backends.memory.master import encoded
from redlock_django.engine import rounds
from redlock_django.engine.attempt import Wait
from redlock_django.engine.errors import ResourceLocked
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.undo import undo_of
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.replies import Replies
from tests.engine import exhaustive, simulator
from tests.engine.changes import CHANGES
from tests.engine.client_store import SimulatedStore
from tests.engine.exhaustive import LEFT, NOW, Broken, Rule, Search
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters, asked
from tests.engine.mutants import all_mutants, kills
from tests.engine.mutation import Change, at_start, changed, instead, never, returns, without
from tests.engine.shrink import shrunk
from tests.engine.simulator import Setup, Simulation, main, replay, sweep
from tests.engine.world import SimulatedMaster


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing about the masters that fail all the time."""
    logger = logging.getLogger("redlock_django")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


# What a seed simulates: by default what it draws.

Simulate = Callable[[int], Simulation]

STEPPING = Setup(clients=3, busy=0.05, every=0.5, faults=frozenset(simulator.STEPS))
LEAPING = replace(STEPPING, busy=0.02, ttls=(1.0, 2.0), every=0.3, faults=frozenset({"leap"}))
NARROW = replace(STEPPING, skew=0.005, latency=0.0005, drifting=True, busy=1.0, seconds=20.0)
EVICTING = Setup(
    clients=4, busy=0.02, max_ttl=0.8, skew=0.02, ttls=(0.6, 0.8), inspected=0.05, every=1.0,
    faults=frozenset({"evict"}),
)  # fmt: skip
COPYING = replace(EVICTING, faults=frozenset({"copy"}))
FAILOVERS = Setup(
    masters=1, failover=True, clients=4, busy=0.3, max_ttl=0.8, skew=0.02, ttls=(0.2, 0.8),
    every=0.7, faults=frozenset({"copy"}),
)  # fmt: skip
HUNG = Setup(faults=frozenset({"hang", "lag"}), seconds=3.0)
STRUCK = Setup(faults=frozenset(simulator.KINDS), stalls=0.01, strikes=0.02)
MIN_HOLDS = Setup(clients=4, seconds=6.0, busy=0.02, ttls=(0.5, 1.5), min_holds=0.8, resources=2)


def of(setup: Setup) -> Simulate:
    """Return what runs a seed with this setup."""
    return partial(Simulation, setup=setup)


def drawn(seed: int, **other: Any) -> Simulation:
    """Return the simulation of a seed, with some parts of its setup replaced."""
    return Simulation(seed, replace(Simulation(seed).setup, **other))


handing = partial(drawn, hands_on=0.6, change="")


def new_list(masters: int, change: str) -> Simulate:
    """Return what runs a seed in which new clients have another list of masters."""
    return of(Setup(
        masters=masters, clients=4, busy=0.02, max_ttl=0.4, skew=0.02, ttls=(0.3, 0.4), seconds=8.0,
        change=change,
    ))  # fmt: skip


class Run(NamedTuple):
    """Seeds that must break no promise, and reach each of some states `least` times.

    Today `seeds` reach them; after a change of the simulator or of the engine, some of `more` will.
    """

    simulate: Simulate
    seeds: Sequence[int]
    states: Sequence[str]
    more: Sequence[int] = ()
    least: int = 1
    never: Sequence[str] = ()


RUNS = {
    # Short seeds that reach each rare state three times if any of 400 do; .ci/run runs thousands.
    "drawn": Run(
        Simulation,
        (0, 6, 26, 29, 31, 45, 68, 75, 76, 104, 120, 128, 156, 157, 165, 182, 190, 199, 207, 209,
         227, 237, 273, 379, 381, 383),
        (
            "grants", "renewed", "healed", "absent", "unknown", "lost",
            "confirm rounds", "confirm failed", "fence ahead", "clock off the median",
            "split votes", "refused by one rival", "unreachable", "two resources",
            "late message", "buried", "kept release", "link lost", "joined",
            "not ready", "untrusted", "stale link",
            "reply expired", "taken for late", "late", "in time again",
            "patient",
            "interrupted with grants out", "interrupted releasing",
            "killed holding", "paused past the deadline", "woke up too late",
            "step noticed", "distrusted for a step", "stepped against a majority", "lease voided",
            "two hold, after a step",
            "given up for its INFO", "answered by an error",
            *(f"fault {one}" for one in (*simulator.KINDS, *simulator.STEPS, *simulator.SERVERS)),
        ),
        range(200, 300),
    ),
    "permits": Run(
        partial(Simulation, permits=True), range(8),
        (
            "permits all held", "refused as all slots are taken", "split votes", "woken",
            "confirm rounds", "renewed", "healed", "lost", "unreachable", "killed holding",
            "interrupted with grants out", "granted after the refusal", "kept release",
        ),
        range(8, 60),
    ),
    "hand-on": Run(
        handing, (*range(28), 54, 102),
        (
            "handed on", "taken", "not taken: TicketUsed", "not taken: LockLost",
            "not taken: QuorumUnreachable", "not handed on: LockLost",
            "not handed on: QuorumUnreachable", "interrupted handing on", "took too late", "healed",
        ),
        range(30, 120),
    ),
    "bytes that are late, cut, lost or delivered twice": Run(
        of(STRUCK), range(14),
        ("grants", "renewed", "bytes cut", "replies repeated", "link lost", "called"), least=11,
    ),
    "bytes that are only cut": Run(
        of(Setup()), range(3), ("bytes cut",), least=101, never=("link lost",)
    ),
    "a minimum hold": Run(of(MIN_HOLDS), (1,), ("ended before its minimum hold",), least=4),
    "an old copy of the data": Run(
        of(COPYING), range(7, 10),
        ("grants", "fault copy", "given up for its INFO", "answered by an error"),
    ),
    "evictions": Run(
        of(EVICTING), range(7, 10), ("grants", "fault evict", "given up for its INFO"),
        never=("answered by an error",),
    ),
    "failover": Run(
        of(FAILOVERS), range(12),
        ("grants", "fault copy", "another server", "extended early", "renewed", "lost"),
        never=("two hold, after a step",),
    ),
    **{
        f"a list of masters that is {change}": Run(
            new_list(3, change), range(3),
            ("grants", "emptied", "met another deployment", "reconfigured"),
        )
        for change in CHANGES
    },
}  # fmt: skip
QUICK = {"a minimum hold", "an old copy of the data", "evictions", "bytes that are only cut"}


def check(run: Run) -> None:
    """Fail with the transcript of the smallest form of a seed that fails, or for missing states."""
    seen, failing = sweep(run.seeds, run.simulate)
    for seed in run.more:
        if not failing and all(seen[state] for state in run.states):
            break
        also_seen, also_failing = sweep([seed], run.simulate)
        seen, failing = seen + also_seen, failing | also_failing
    if failing:
        seed = min(failing)
        lines = replay(*shrunk(seed, run.simulate(seed).setup)).splitlines()
        pytest.fail("\n".join([*lines[:1], "...", *lines[-400:], f"all that failed: {failing}"]))
    assert [state for state in run.states if seen[state] < run.least] == []
    assert [state for state in run.never if seen[state]] == []


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in RUNS]
)
def test_no_seed_breaks_a_promise(name: str) -> None:
    check(RUNS[name])


@pytest.mark.nightly
def test_none_of_many_seeds_that_hand_locks_on_breaks_a_promise() -> None:
    check(RUNS["hand-on"]._replace(seeds=range(1000, 3000)))


def test_a_lock_that_outlives_its_tombstone_stays_for_its_ttl_without_a_holder() -> None:
    """A master that hung processes an acquire more than MAX_TTL after it was undone."""
    simulation = Simulation(0, Setup(masters=1, clients=1, busy=1e9))
    world, (master,), (client,) = simulation.world, simulation.masters, simulation.clients
    asked = next(client.store.acquire(("r0",), 1.0, 0.0, "{}"))
    (ask,) = asked.commands
    marker = master.memory.keyspace.get(simulation.deployment.marker)
    assert marker is not None
    undo = replace(undo_of(ask, leave=True), bury=True)
    master.reply_to(undo, undo.keys(), encoded([0, *undo.arguments()]))
    world.run(simulation.deployment.max_ttl + 0.1)
    late = encoded([1, *ask.arguments(), marker, 0])
    assert master.reply_to(ask, ask.keys(), late).status == Status.GRANTED
    simulation.checker.left([master], clients_idle=True)
    assert world.seen["outlived its tombstone"] == 1
    world.run(world.now + 1.1)
    assert not master.locks()


# Replaying a seed.


def test_a_seed_produces_the_same_trace_twice() -> None:
    first, again = replay(3), replay(3)
    assert first == again
    assert first.endswith("uv run python -m tests.engine.simulator --seed 3")
    assert replay(4) != first


def test_the_command_that_replays_a_seed_names_the_permits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    transcript = replay(3, permits=True)
    assert transcript.endswith("uv run python -m tests.engine.simulator --seed 3 --permits")
    assert transcript != replay(3)
    assert main(["--seed", "3", "--permits"]) == 0
    assert capsys.readouterr().out == transcript + "\n"
    setup = Simulation(3, permits=True).setup
    assert replay(3, setup).splitlines()[:-1] == transcript.splitlines()[:-1]
    for one in (setup, handing(3).setup):
        assert Setup.read(one.spelled()) == one


@pytest.mark.slow
def test_a_failing_seed_is_made_small(capsys: pytest.CaptureFixture[str]) -> None:
    crowd = Setup(masters=4, clients=5, resources=3, two=0.3, faults=frozenset(simulator.KINDS))
    with all_mutants()["quorum of half"].active():
        failing = next(seed for seed in range(50) if "Violation" in replay(seed, crowd))
        seed, setup = shrunk(failing, crowd)
        assert setup.clients <= 2
        assert (setup.resources, setup.two) == (1, 0.0)
        assert len(setup.faults) <= 2
        trace = replay(seed, setup)
        assert len(trace) < len(replay(failing, crowd)) / 4
        command = shlex.split(trace.splitlines()[-1])
        assert main(command[command.index("--seed") :]) == 1
        assert capsys.readouterr().out == trace + "\n"
    with pytest.raises(ValueError, match="breaks no promise"):
        shrunk(seed, setup)


# Defects: an engine, a script or a setting with one rule less. Each must be detected.

SET_IT = "not seen[2 + 2 * index] and not redis.call('SET', key, value, 'NX', 'PX', ttl)"
OVERWRITE = "not redis.call('SET', key, value, 'PX', ttl)"


class Defect(NamedTuple):
    """The report of a seed that detects a defect, the first seed to try, and what it simulates.

    The defect is these `changes`, or mutants of these names; by default the mutant of its own name.
    The named seed detects it today; after a change of the simulator, one of the next will.
    """

    report: str
    seed: int = 0
    simulate: Simulate = Simulation
    changes: tuple[Change | str, ...] = ()


DEFECTS = {
    "quorum of half": Defect("hold it", 2),
    "no drift": Defect("hold it", 188),
    "validity from the reply": Defect(
        "hold it", 22, changes=("validity from the answer", "extended from the answer")
    ),
    "plain DEL": Defect("hold it", 60),
    "no quarantine": Defect("fence", 2, changes=((simulator.restart_delay, returns("0.0")),)),
    "no confirm round": Defect("fence", 20),
    "no bound on proposals": Defect(
        "fence", 14, changes=("no clamp above", "acquire counts a poisoned fence")
    ),
    "fences from the clock alone": Defect("fence"),
    "acquire overwrites a lock that it sees": Defect("hold it", changes=(
        ("acquire", lua("if lock ~= value then", "if not lock then", (SET_IT, OVERWRITE))),
    )),
    "no tombstone": Defect("buried", 42),
    "no undo": Defect("left on", 24),
    "undo only what was granted": Defect("left on", 109),
    "a release ends the minimum hold": Defect("hold it", 20),
    "a release that is not sent to the first master": Defect(
        "gets None from its release", 1, changes=(
            (rounds.release, instead("... is WON", "tally.verdict is WON and commands[0]")),
        ),
    ),
    "our own step is the masters'": Defect("still believes", 6, of(STEPPING)),
    "nothing voids a lease": Defect(
        "still believes", 5, of(LEAPING), ((SimulatedStore.voided, returns("False")),)
    ),
    "a copy has the run of its server": Defect("hold it", 3, of(COPYING)),
    "evicting servers vote": Defect("hold it", 3, of(EVICTING)),
    "a restart goes unnoticed": Defect("hold it", 0, of(EVICTING)),
    "INFO is never read again": Defect(
        "hold it", 11, of(EVICTING),
        ((Links._look, never("now >= master.inspect_at")),),
    ),
    "a promoted replica grants at once": Defect("hold it", 2, of(FAILOVERS)),
    "a promoted replica is not checked": Defect(
        "hold it", 45, of(FAILOVERS), ((SimulatedMaster._is_named, returns("True")),)
    ),
    "a promotion ends no run": Defect(
        "hold it", 1, of(FAILOVERS), ("a copy has the run of its server",)
    ),
    "any client marks masters": Defect(
        "hold it", 0, new_list(1, "grown"), ((Membership.may_mark, at_start("return True")),)
    ),
    "a fingerprint without the masters": Defect("hold it", 1, new_list(3, "replaced")),
    "another deployment stops no lock": Defect(
        "hold it", 1, new_list(1, "grown"), ((Membership.saw, instead("next(...)", "''")),)
    ),
    "a plain grant of any round": Defect("stepped", 2, of(HUNG)),
    "a plain reply shows no step": Defect(
        "does not notice", 0, of(STEPPING), ((Replies._believes, at_start("return True")),)
    ),
    "a late reply keeps its vote": Defect(
        "longer than it asked for", 9, of(HUNG),
        ((LateWatch.fail_late, without("exchange.cast(...)")),),
    ),
    "a faulty master is asked": Defect("no master decides", 42, of(STRUCK)),
}  # fmt: skip


def defective(name: str) -> Any:
    """Return a context manager in which a defect is there."""
    changes = DEFECTS[name].changes or (name,)
    known = all_mutants()
    return changed(*(
        (known[one].function, known[one].mutation) if isinstance(one, str) else one
        for one in changes
    ))  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_detected(name: str) -> None:
    report, first, simulate, _ = DEFECTS[name]
    with defective(name):
        for seed in range(first, first + 60):
            try:
                simulate(seed).run()
            except AssertionError as violation:
                if report in str(violation):
                    return
    pytest.fail(f"{name}: seeds {first} to {first + 59} pass")


def test_bytes_that_are_cut_are_missed() -> None:
    with (
        all_mutants()["a part of a reply is lost"].active(),
        pytest.raises(AssertionError, match="link lost"),
    ):
        check(RUNS["bytes that are only cut"])


# Directed: what seeds hardly ever reach.


@kills("one token for all rounds", Wait.next_attempt, instead("next(client.tokens)", "'0' * 32"))
def test_a_late_undo_cannot_free_the_round_after_it(masters: Masters) -> None:
    """The masters hear round 1 and their replies are lost; its undo arrives after round 2 won."""
    protocol = masters.acquire(wait=1.0)
    masters.hear(next(protocol), mute=(0, 1, 2))
    undo = asked(protocol.send(masters.now))
    # As without links: the undo was sent, and round 2 overtakes it.
    for memory in masters.memories:
        memory.keyspace.strings.pop(masters.deployment.lock("r"), None)
    protocol.send(masters.now)
    lease = masters.carry(protocol, protocol.send(masters.now))
    masters.hear(undo)
    assert masters.tokens() == [lease.token] * 3
    with pytest.raises(ResourceLocked):
        masters.run(masters.acquire())


@kills("an extension re-creates", "ownership", lua("if absent > 0 then", "if false then"))
def test_an_extension_counts_no_master_that_has_forgotten(masters: Masters) -> None:
    """B acquired m1 and m2, and m1 has forgotten B's lock, too."""
    mine = masters.run(masters.acquire(), down=(2,))
    masters.forget(1)
    rival = masters.run(masters.acquire(), down=(0,))
    assert masters.tokens() == [mine.token, rival.token, rival.token]
    masters.forget(1)  # B still holds m2, and its majority counted m1
    state, _ = masters.run(masters.extend(mine))
    assert state is not LeaseState.RENEWED


# Exhaustive: every trace of two clients and three masters, and some with more of either.

STARTS = [
    ((0, 0, 0), (NOW + 1, NOW + 2), 2),
    ((0, 0, LEFT), (NOW + 1, NOW + 1), 1),
    ((0, 0, LEFT), (NOW + 5, NOW + 1), 1),
    ((0, LEFT, LEFT), (NOW + 1, NOW + 2), 1),
    ((LEFT, LEFT, LEFT), (NOW + 2, NOW + 5), 1),
    ((0, 0, 0), (NOW + 1, NOW + 2, NOW + 1), 0),
    ((0, 0, 0, 0, 0), (NOW + 1, NOW + 2), 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fences", "proposals", "losses"), STARTS)
def test_every_trace(fences: tuple[int, ...], proposals: tuple[int, ...], losses: int) -> None:
    assert Search(Rule(), fences, proposals, losses).run() > 2_000


@pytest.mark.slow
def test_every_trace_from_many_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert exhaustive.main(["--masters", "3", "--losses", "0"]) == 0
    assert re.search(
        r"[\d,]{6,} states in \d+ s, and no promise was broken", capsys.readouterr().out
    )


BROKEN = {
    "no write-back": Rule(stored_by_majority=lambda tally, fences: True),
    "write-back to any majority": Rule(confirm_anywhere=True),
}


@pytest.mark.parametrize("fences", [(0, 0, LEFT), (0, 0, 0, LEFT, LEFT)])
@pytest.mark.parametrize("rule", BROKEN.values(), ids=BROKEN)
def test_must_fail_a_weaker_fencing_rule(rule: Rule, fences: tuple[int, ...]) -> None:
    search = Search(rule, fences, (NOW + 1, NOW + 1), losses=1)
    with pytest.raises(Broken, match=r"\n[AB] is through\n(.*\n)+[AB] holds it with \d+ after \d+"):
        search.run()
