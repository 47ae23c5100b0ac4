"""Permits beside locks: a pair of a free slot, a refusal, and the hand-off of a slot.

A pair is of a name with three slots, of which none is held, or two by another process, so that the
process may ask for a slot that is taken. In a hand-off, two slots are held throughout, and eight
threads or tasks take turns with the third.
"""

from __future__ import annotations

from functools import partial
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Reason, Target, Workload
from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.workloads import handoff
from redlock_django.engine.protocol.slots import slot_resource

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

LIMIT = 3
OURS = ("ours", "ours async")
JOBS: dict[str, dict[str, Any]] = {
    "lock": {"job": "permits.pairs", "limit": 1},
    "permit": {"job": "permits.pairs", "limit": LIMIT},
    "last permit": {"job": "permits.pairs", "limit": LIMIT, "others": LIMIT - 1},
    "all taken": {"job": "permits.refusals", "limit": LIMIT},
    "lock taken": {"job": "permits.refusals", "limit": 1},
    "hand-off of a lock": {"job": "handoff.drain"},
    "hand-off of a permit": {"job": "permits.drain", "limit": LIMIT},
}


async def pairs(bench: Bench, *, limit: int, others: int = 0, **timing: Any) -> dict[str, Any]:
    """Acquire and release one of `limit` slots repeatedly; other clients hold `others` of them."""
    names = [name("slot", place) for place in range(KEYS)]
    bench = bench.permits(limit)
    await _hold(bench, names, others)
    return await bench.measured(partial(bench.pairs, names, resource_of=_slot), **timing)


def _slot(name: str, held: Any) -> str:
    return slot_resource(name, held.slot)


async def _hold(bench: Bench, names: list[str], many: int) -> None:
    """Hold `many` slots of each name as another process, until this one ends."""
    other = bench.elsewhere()
    for resource in names:
        for _ in range(many):
            (await other.wait(resource)).disown()


async def refusals(bench: Bench, *, limit: int, **timing: Any) -> dict[str, Any]:
    """Try to acquire a name of which other clients hold all slots."""
    bench, resource = bench.permits(limit), name("full", 0)
    await _hold(bench, [resource], limit)
    return await bench.measured(partial(bench.refusals, resource), **timing)


async def drain(bench: Bench, *, limit: int, **how: Any) -> dict[str, Any]:
    """Hand the last slot of a name round, as `handoff.drain` does with a lock."""
    bench = bench.permits(limit)
    await _hold(bench, [name("drain", place) for place in range(KEYS)], limit - 1)
    return await handoff.drain(bench, **how)


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters; a hand-off also a folder for the witness."""
    how = {**JOBS[case], "seconds": plan.seconds}
    if case.startswith("hand-off"):
        how |= {"folder": mkdtemp(dir=plan.processes.directory), "seconds": plan.seconds * 2}
    with plan.worker(name, setting) as worker:
        return worker.do(**how)


SLOTS = Reason(
    "permits",
    "A permit names the lock of each slot to a master, and the client notes the slot that it "
    "released.",
    "fewer slots: each is a key of the command",
)
PERMIT, TAKEN, HANDED = (
    Where("permits", "pin", case, "ours")
    for case in ("permit", "all taken", "hand-off of a permit")
)
LOCK, REFUSED, LOCK_HANDED = (
    Where("permits", "pin", case, "ours") for case in ("lock", "lock taken", "hand-off of a lock")
)

WORKLOAD = Workload(
    "permits",
    settings=("pin",),
    cases=lambda setting: [(case, OURS) for case in JOBS],
    measure=measure,
    targets=[
        Target(
            "acquire + release of a permit", "pin: client CPU by a lock", 1.15,
            PERMIT.by(LOCK, "cpu_us"), reason=SLOTS,
        ),
        Target(
            "hand-off of a permit", "pin: p50 by a lock", 1.3, HANDED.by(LOCK_HANDED), reason=SLOTS
        ),
        Target(
            "refuse where all slots are taken", "pin: client CPU by a refused lock", 1.5,
            TAKEN.by(REFUSED, "cpu_us"), reason=SLOTS,
        ),
    ],
)  # fmt: skip
