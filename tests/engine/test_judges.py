"""Every check of the simulator is needed: without it, a defect that it detects goes unnoticed."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redlock_django.engine import pauses, quorum, refusal, rounds
from redlock_django.engine.attempt import Attempt, Wait
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.slot_choice import SlotChoice
from redlock_django.engine.undo import undo_of
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.waiters import Waiter
from redlock_django.wire.servers import info as server_info
from tests.engine.checker import Checker, Holding
from tests.engine.client_store import _Deadline
from tests.engine.clients import Client
from tests.engine.lua_mutation import lua
from tests.engine.mutation import (
    Change,
    Mutation,
    always,
    at_start,
    changed,
    instead,
    mutated_source,
    never,
    plain_function,
    returns,
    together,
    without,
)
from tests.engine.network import Wire
from tests.engine.simulator import Setup, Simulation
from tests.engine.stepping import StepCheck, Truth
from tests.engine.test_safety import EVICTING, LEAPING, NARROW, STEPPING
from tests.engine.world import SimulatedMaster

SEEDS = 60  # seeds to look through for one that shows a judge

CALM = Setup(clients=3, seconds=4.0, busy=0.02, ttls=(0.2, 0.5))
HALVED = replace(CALM, masters=4, faults=frozenset({"partition", "kill"}))
STALLING = replace(CALM, seconds=8.0, max_ttl=0.5, stalls=0.05)
BREAKING = replace(CALM, faults=frozenset({"reset", "deaf", "mute"}), every=0.1)
DYING = replace(CALM, clients=4, resources=2, seconds=1.0, faults=frozenset({"die"}), every=0.1)
HANDING = replace(CALM, clients=4, hands_on=0.8, faults=frozenset({"kill", "pause"}))
GOING_BACK = replace(STEPPING, masters=1, every=0.2)
PERMITS = replace(CALM, clients=4, limit=2)
FORGETTING = replace(CALM, masters=1, clients=2, faults=frozenset({"restart"}))


class Judge(NamedTuple):
    """One check, by the change that disables it; a defect; what the check reports of it.

    Without a `setup`, every seed draws its own.
    """

    check: tuple[Any, Mutation]
    defects: tuple[Change, ...]
    report: str
    setup: Setup | None = None
    seed: int = 0  # the first to try

    def alone_detects(self, seed: int) -> bool:
        """Return whether this check, and no other, detects the defect in a seed."""
        with changed(*self.defects):
            if self.report not in self._failure(seed):
                return False
            with changed(self.check):
                if self._failure(seed):
                    return False
        return not self._failure(seed)

    def _failure(self, seed: int) -> str:
        try:
            Simulation(seed, self.setup).run()
        except AssertionError as violation:
            return str(violation)
        return ""


def unraised(function: Any, nth: int = 0) -> tuple[Any, Mutation]:
    """Return the change that removes a `raise Violation`."""
    return function, without("raise Violation(...)", nth=nth)


HALF_IS_A_QUORUM = (quorum.quorum, returns("max(1, masters // 2)"))
FENCES_BY_THE_CLOCK = ("acquire", lua(
    "math.max(stored + 1, proposal)", "proposal", ("math.max(fence + 1, proposal)", "proposal"),
))  # fmt: skip
DRIFT_IS_A_STEP = (StepWatch.note, instead("0.01 * abs(...)", "0.0"))

JUDGES: dict[str, Judge] = {
    "at a grant, no other client holds the resource": Judge(
        (Checker.granted, without("self._alone(holding)")), (HALF_IS_A_QUORUM,), "hold it", HALVED,
        111,
    ),
    "after a renewal, no other client holds the resource": Judge(
        (Checker.renewed, without("self._alone(holding)")),
        ((rounds.extend, together(
            never("now >= lease.until", nth=1), never("now >= lease.until", nth=1),
            always("tally.verdict is WON and ..."),
        )),),
        "hold it", STALLING, 49,
    ),
    "no two clients hold a resource": Judge(
        unraised(Checker._alone), (HALF_IS_A_QUORUM,), "hold it", HALVED, 111,
    ),
    "only clock steps excuse two holders": Judge(
        (Holding.robbed, returns("True")),
        (("release", lua(
            "not lock or lock == value and left == 0", "not (lock == value and left > 0)"
        )),),
        "hold it", CALM,
    ),
    "only what no client can know of a server excuses two holders": Judge(
        (Holding.robbed, always("before <= max(unknown, ...)")),
        ((server_info.run_of, never("evicted.isdecimal()")),), "hold it",
        EVICTING,
    ),
    "only what no client can know of a server excuses a fence": Judge(
        (Checker._grows, always("new.began <= until")),
        ((server_info.faults, never("may_evict(info)")),), "fence",
        replace(
            EVICTING, masters=1, skew=0.2, wrong_walls=100.0, every=0.2, ttls=(0.02, 0.06),
            busy=0.01,
        ), 72,
    ),
    "no more clients hold slots of a name than its limit": Judge(
        unraised(Checker._few),
        ((SlotChoice.resource, at_start("self._open = range(self.limit + 1)")),),
        "and its limit is 2", PERMITS,
    ),
    "no client is refused beside a free slot": Judge(
        unraised(Checker.refused), ((Wait._may_take_another, returns("False")),),
        "and r0 is free", PERMITS, 43,
    ),
    "a fence grows": Judge(
        (Checker._grows, always("fence > last")),
        ((Attempt.judge, instead("stored_by_majority(...)", "True")),), "fence", None, 14,
    ),
    "a fence grows although clocks step": Judge(
        unraised(Checker._grows, 2), (FENCES_BY_THE_CLOCK,), "fence", GOING_BACK, 51,
    ),
    "a fence goes back only where a master has forgotten it": Judge(
        (Checker._went_back, returns("True")), (FENCES_BY_THE_CLOCK,), "fence", GOING_BACK,
        51,
    ),
    "a release returns the truth": Judge(
        unraised(Checker.released),
        ((rounds.release, instead("... if tally.denied else None", "True")),),
        "from its release", BREAKING,
    ),
    "no lock outlives its TTL": Judge(
        unraised(Checker.left, 1),
        (
            ("set_locks", lua("key, value, 'NX', 'PX', ttl", "key, value, 'NX', 'PX', 4000")),
            ("acquire", lua("KEYS[4], value, 'NX', 'PX', ttl", "KEYS[4], value, 'NX', 'PX', 4000")),
            ("acquire", lua("lasts > MAX_TTL and", "false and")),
        ),
        "the lock of", DYING, 7,
    ),
    "a round that was lost leaves no lock": Judge(
        unraised(Checker.left, 2),
        ((Attempt.undo, instead("tally.unsure if is_left else tally.reached", "_NONE")),),
        "was left on", BREAKING, 1,
    ),
    "no queue outlives its lock by much": Judge(
        unraised(Checker._queues, 1),
        (("queue", lua("lasts + LINGER", "9e12")),),
        "the queue of", replace(DYING, ttls=(1.5, 2.0)), 1,
    ),
    "no client that gave up is queued": Judge(
        unraised(Checker._queues, 2),
        ((undo_of, instead("ask.waiter if leave else ...", "''")),), "'s queue on", CALM,
    ),
    "a tombstone keeps its token away": Judge(
        unraised(SimulatedMaster._dug_up),
        ((Release.arguments, never("self.bury")),),
        "buried", replace(BREAKING, seconds=8.0, latency=0.01, strikes=0.1), 1,
    ),
    "all clients end and reconnect once the faults are over": Judge(
        unraised(Simulation._check_left),
        ((LinkChanges.finish_losing, without("master.undialed = ...")),),
        "the clients do not end", replace(BREAKING, masters=5, clients=1, every=2.0),
    ),
    "every resource is granted once the faults are over": Judge(
        unraised(Simulation._check_live, 1),
        (("join", lua("or now + delay", "or now + 100 * delay")),),
        "no client acquires", FORGETTING,
    ),
    "no master is suspected for ever": Judge(
        unraised(Simulation._check_live, 2), ((StepWatch.decide, without("self.check(...)")),),
        "suspected for ever", STEPPING,
    ),
    "no client waits for ever": Judge(
        unraised(Simulation._check_live, 3),
        (
            (pauses.retry_delays, at_start("return 60.0, 60.0")),
            (Wait.pause, instead("max(0.0, ...)", "delay")),
            (Waiter.decided, returns("False")),
        ),
        "a client does not end", CALM, 4,
    ),
    "a client whose own clock stepped gives up its lease": Judge(
        unraised(Client.blamed),
        ((StepWatch._blame_ourselves, instead("max(...)", "now")),),
        "still believes", LEAPING, 22,
    ),
    "a step is noticed": Judge(
        unraised(Truth.noted, 1),
        ((StepWatch.note, never("apart > self.deployment.max_clock_skew")),),
        "does not notice", STEPPING,
    ),
    "drift is not a step": Judge(
        unraised(Truth.noted, 2), (DRIFT_IS_A_STEP,), "but has not", NARROW,
    ),
    "no step is noticed where no clock steps": Judge(
        unraised(StepCheck._noted), (DRIFT_IS_A_STEP,),
        "but no clock steps", replace(NARROW, faults=frozenset()),
    ),
    "a round has a verdict": Judge(
        unraised(Wire._check_decided),
        ((Master.fail_owed, without("owed.exchange.cast(...)")),),
        "that no master decides",
        replace(CALM, faults=frozenset({"reset", "kill"})), 2,
    ),
    "a master that stepped is counted only after its delay": Judge(
        unraised(Truth.counted), ((Master.doubt, never("self.suspect", nth=1)),),
        "is counted", STEPPING, 1,
    ),
    "no wait is longer than asked": Judge(
        unraised(_Deadline.check),
        ((Wait.goes_on, always("now < self.give_up")),),
        "longer than it asked for", CALM,
    ),
    "a ticket is used once": Judge(
        unraised(Checker.resumed, 1),
        (
            ("take", lua("if seen[4] then", "if false then")),
            # Only take.lua compares the beginning of a lock.
            ("ownership", lua(
                "lock and lock:sub(1, length) ~= own",
                "lock and lock:sub(1, length) ~= own"
                " and not (length > 0 and lock:find('handed_on', 1, true))",
            )),
        ),
        "takes what was taken before", HANDING, 31,
    ),
    "a taker has the fence of its giver": Judge(
        unraised(Checker.resumed, 2),
        ((
            Wait.next_attempt,
            instead(
                "expected.fences",
                "expected.fences if expected.home else tuple(one + 1 for one in expected.fences)",
            ),
        ),),
        "with another fence", HANDING,
    ),
    "a ticket counts as used if a taker had it": Judge(
        unraised(Checker.told_used),
        (
            (Attempt.split, instead("last.rival_won", "last.denied")),
            (refusal.refusal_of_ticket, together(
                instead("tally.rival_won", "tally.denied", nth=1),
                instead("tally.rival_won", "tally.denied"),
            )),
        ),
        "that no client has used", HANDING, 95,
    ),
    "nobody holds a lock before its taker": Judge(
        unraised(Checker.resumed, 3),
        (
            ("ownership", lua("if absent > 0 then", "if absent > 0 and length < 0 then")),
            ("take", lua(".. seen[5]", ".. (seen[5] or '')")),
        ),
        "another client has held it",
        replace(HANDING, ttls=(0.2, 0.3), seconds=8.0, busy=0.2, faults=frozenset({"pause"})),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGES)
def test_a_defect_goes_unnoticed_without_its_judge(name: str) -> None:
    judge = JUDGES[name]
    # The named seed shows it today; after a change of the simulator, one of the next will.
    seeds = range(judge.seed, judge.seed + SEEDS)
    assert any(map(judge.alone_detects, seeds)), f"no seed of {seeds} needs this judge"


def _raising(module: Path) -> Iterator[str]:
    """Yield the name of a function for each of its `raise Violation`."""
    for function in ast.walk(ast.parse(module.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Raise) and "Violation(" in ast.unparse(node):
                    yield f"tests.engine.{module.stem}.{function.name}"


def test_every_check_has_a_judge() -> None:
    judged: dict[str, set[str]] = defaultdict(set)  # by function: its code without each check
    for judge in JUDGES.values():
        function = plain_function(judge.check[0])
        code = mutated_source(*judge.check)
        judged[f"{function.__module__}.{function.__name__}"].add(code)
    modules = [one for one in Path(__file__).parent.glob("*.py") if "test_" not in one.name]
    raised = Counter(name for module in modules for name in _raising(module))
    assert raised.total() > 20
    missing = {name for name, times in raised.items() if len(judged[name]) < times}
    assert not missing, "these checks can be removed without a failing test"
