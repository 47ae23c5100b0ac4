"""The speed and fairness of the hand-off from a holder to a waiter.

- drain: eight threads (or tasks) of one process queue up behind a holder, each takes one turn;
- think: eight processes take turns, with a pause of 5 ms after each;
- greedy: the same without a pause.

A turn is held for 1 ms. The eight processes are connected before the first of them asks, and take
turns for a while before the count begins; the count ends while all of them still ask.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Reason, Table, Target, WorkerFailed, Workload
from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import Profile, clock, latencies
from benchmarks.worker.witness import Turnstile

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

ASKED = ("ours", "python-redis-lock", "pottery", "redis-py", "ours async")
PROCESSES = 8
PAUSES = {"think": 0.005, "greedy": 0.0}
HELD = 0.001
"""Seconds that a turn is held."""

LEAD = 0.5
"""Seconds of turns before the count begins."""

COUNTED = 2.0
"""Seconds of turns that are counted, at least: of a few turns, no process gets an equal share."""


async def turn(bench: Bench, gate: Turnstile, resource: str) -> list[float]:
    """Wait for a lock, hold it and release it; return the times [asked, taken, leaving]."""
    asked = clock()
    held = await bench.wait(resource)
    taken = clock()
    with gate:
        await bench.sleep(HELD)
    leaving = clock()
    await bench.release(held)
    return [asked, taken, leaving]


async def drain(
    bench: Bench, *, folder: str, seconds: float, waiters: int = 8, profile: bool = False
) -> dict[str, Any]:
    """Repeatedly let waiters queue behind a holder and take one turn each."""
    gate, watch = Turnstile(f"{folder}/turn"), Profile(profile)
    gaps: list[float] = []
    began, drains = clock(), 0

    async def one(resource: str, turns: list[list[float]]) -> None:
        turns.append(await turn(bench, gate, resource))

    while clock() < began + seconds or drains < 2:
        resource, drains = name("drain", drains % KEYS), drains + 1
        turns: list[list[float]] = []
        async with bench.holding(resource) as enough:
            queue = [bench.start(one(resource, turns)) for _ in range(waiters)]
            await bench.sleep(0.05)  # until all of them wait
            left = clock()
            enough.set()
        with watch.running():
            await bench.ended(*queue)
        for _, taken, leaving in sorted(turns, key=lambda times: times[1]):
            gaps.append(taken - left)
            left = leaving
    counts = {"turns": len(gaps), "looks": len(gaps), "overlaps": gate.overlaps}
    return {**latencies(gaps), **counts, **watch.figures()}


async def connect(bench: Bench) -> dict[str, Any]:
    """Connect to the masters, by a lock that no other process asks for."""
    await bench.release(await bench.wait(name("turns", os.getpid())))
    return {}


async def take_turns(
    bench: Bench, *, folder: str, start: float, end: float, pause: float
) -> dict[str, Any]:
    """Take turns with other processes; `start` and `end` are times of `clock`."""
    gate, resource = Turnstile(f"{folder}/turn"), name("turns", 0)
    ours: list[list[float]] = []
    await bench.sleep(max(0.0, start - clock()))
    while clock() < end:
        ours.append(await turn(bench, gate, resource))
        if pause:
            await bench.sleep(pause)
    return {"turns": ours, "looks": len(ours), "overlaps": gate.overlaps}


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters and the setting free."""
    folder, seconds = mkdtemp(dir=plan.processes.directory), plan.seconds * 2
    if case == "drain":
        with plan.worker(name, setting) as worker:
            return worker.do(job="handoff.drain", folder=folder, seconds=seconds)
    counted = max(seconds, COUNTED)
    with plan.workers(name, setting, PROCESSES) as workers:
        for worker in workers:
            worker.ask(job="handoff.connect")
        for worker in workers:
            worker.answer(0.0)
        start = time.monotonic() + 0.1  # until all workers have read their job
        begin, end = start + LEAD, start + LEAD + counted
        how = {"folder": folder, "start": start, "end": end, "pause": PAUSES[case]}
        for worker in workers:
            worker.ask(job="handoff.take_turns", **how)
        said = [worker.answer(LEAD + counted) for worker in workers]
    seen = {count: sum(one[count] for one in said) for count in ("looks", "overlaps")}
    return {**together([one["turns"] for one in said], begin, end), **seen}


def together(turns: list[list[list[float]]], begin: float, end: float) -> dict[str, float]:
    """Return the figures of the turns of all processes, each turn as [asked, taken, leaving].

    Turns that were taken from `begin` to `end` count, and waits that lasted into that time. A
    hand-off counts if the next holder was already waiting at the release. Raises WorkerFailed if
    no turn was taken in that time.
    """
    counts = [sum(begin <= taken < end for _, taken, _ in ours) for ours in turns]
    every = sorted((one for ours in turns for one in ours), key=lambda times: times[1])
    waits = [
        taken - max(asked, begin) for asked, taken, _ in every if asked < end and taken >= begin
    ]
    counted = [one for one in every if begin <= one[1] < end]
    if not counted:
        raise WorkerFailed(f"no process took a turn in {end - begin:g} s")
    gaps = [
        taken - left
        for (_, _, left), (asked, taken, _) in zip(counted, counted[1:])  # noqa: B905, RUF007
        if asked < left
    ]
    return {
        **latencies(gaps),
        "per_s": len(counted) / (end - begin),
        # A process without a turn counts as half a turn.
        "share": max(counts) / (min(counts) or 0.5),
        "fewest": min(counts),
        "longest_wait_ms": max(waits) * 1e3,
        "turns": len(counted),
    }


ROUND = Reason(
    "handoff",
    "A release goes to five masters, which share the processors with the clients and call the "
    "next waiter; that asks all of them (benchmarks/README.md). python-redis-lock pops a list on "
    "one master.",
    "processors of their own for the masters",
)


def fair(case: str, work: str, share: float, wait_ms: float) -> Iterator[Target]:
    """Yield the targets of turns of processes."""
    ours, most = Where("handoff", "free", case, "ours"), "turns, most by fewest"
    yield Target(work, most, share, ours.own("share"), reason=ROUND)
    yield Target(
        work, "longest wait", wait_ms, ours.own("longest_wait_ms"), unit=" ms", reason=ROUND
    )


DRAINED = Where("handoff", "free", "drain", "ours").by("python-redis-lock")

WORKLOAD = Workload(
    "handoff",
    settings=("free",),
    cases=lambda setting: [(case, ASKED) for case in ("drain", *PAUSES)],
    measure=measure,
    tables=[
        Table(
            "Hand-off to a waiter, held for 1 ms",
            [
                Column("drain: p50 ms", "free", "drain", "p50_us", scale=1e-3),
                Column("think: p50 ms", "free", "think", "p50_us", scale=1e-3),
                Column("greedy: p50 ms", "free", "greedy", "p50_us", scale=1e-3),
                Column("turns, most by fewest", "free", "greedy", "share"),
                Column("longest wait ms", "free", "greedy", "longest_wait_ms"),
            ],
            "*drain*: eight threads or tasks of one process take one turn each. *think* and "
            "*greedy*: eight processes take turns, with a pause of 5 ms after each, and without.",
        )
    ],
    targets=[
        Target(
            "hand-off, eight threads drain", "p50 by python-redis-lock", 1.6, DRAINED, reason=ROUND
        ),
        Target(
            "hand-off between eight processes, no pause",
            "p50 by python-redis-lock",
            1.5,
            Where("handoff", "free", "greedy", "ours").by("python-redis-lock"),
            reason=ROUND,
        ),
        *fair("think", "eight processes, 5 ms between turns", 1.2, 30),
        *fair("greedy", "eight processes, no pause", 2, 300),
    ],
)
