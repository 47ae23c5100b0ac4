"""Pairs while 1 to 100 000 other locks are held, and the memory of a held lock."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Results, Where, written
from benchmarks.harness.workload import Workload
from benchmarks.worker.bench import Bench, name
from benchmarks.worker.figures import Done, clock, latencies

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

COUNTS = (1, 100, 1_000, 10_000, 100_000)
TRACED = "1 000 traced"
"""A separate case, because tracemalloc is exact but slows everything down."""


async def hold_many(
    bench: Bench, *, count: int, seconds: float, trace: bool = False
) -> dict[str, Any]:
    """Hold `count` locks and run pairs at the same time; the locks are still held on return.

    Memory of this process for each of them, in bytes: resident, and with `trace` as
    tracemalloc counts it.
    """
    await bench.pairs([name("pair", 0)], clock() + 0.2, Done())
    before, traced = resident(), 0
    done = Done()
    if trace:
        tracemalloc.start()
    queue = iter(range(count))

    async def take() -> None:
        for place in queue:  # shared by all tasks
            resource, taken = name(f"h{place // 1000}", place % 1000), None
            while taken is None:
                try:
                    taken = await bench.acquire(resource)
                except Exception as error:  # noqa: BLE001 - any error is a failed pair
                    done.fail(error)
            _kept.append(taken)

    await asyncio.gather(*(take() for _ in range(min(count, 100))))
    if trace:
        traced = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    bytes_resident = resident() - before
    await bench.pairs([name("pair", 0)], clock() + seconds, done)
    bench.intruder.look(name(f"h{(count - 1) // 1000}", (count - 1) % 1000))
    return {
        **latencies(done.seconds),
        "failed": done.failed,
        "why": done.why,
        "client_bytes": bytes_resident / count,
        "client_bytes_traced": traced / count,
        "looks": bench.intruder.looks,
        "overlaps": bench.intruder.overlaps,
    }


_kept: list[Any] = []


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    with open("/proc/self/statm") as said:
        return int(said.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters and the setting free; the locks are not renewed."""
    trace = case == TRACED
    count = 1_000 if trace else int(case)
    with plan.worker(name, setting, renew=False, ttl=60) as worker:
        before = plan.masters.info("memory", "used_memory")
        worker.ask(job="held.hold_many", count=count, seconds=plan.seconds, trace=trace)
        figures = worker.answer(plan.seconds + 60)
        after = plan.masters.info("memory", "used_memory")
    return {**figures, "master_bytes": (after - before) / 5 / count}


def growth(results: Results) -> Iterator[str]:
    """Yield a line on pairs beside held locks, and one on the memory of these."""

    def of(case: str, figure: str) -> float | None:
        return results.median(Where("held", "free", case, "ours async"), figure)

    counts = [case for case in results.names("case", workload="held") if case.isdigit()]
    held = [(case, of(case, "p50_us")) for case in counts]
    beside = ", ".join(f"{written(int(case))}: {p50:.0f}" for case, p50 in held if p50)
    if beside:
        yield f"**Held locks**: p50 of a pair in µs while so many others are held: {beside}."
    most = counts[-1] if counts else ""
    master, client = of(most, "master_bytes"), of(most, "client_bytes")
    traced = of(TRACED, "client_bytes_traced")
    if master and client:
        yield (
            f"**Memory** of a held lock, of {written(int(most))}: {written(master)} bytes on each "
            f"master (lock, fence, index), {written(client)} resident in the client"
            + (f" ({written(traced)} by tracemalloc)." if traced else ".")
        )


WORKLOAD = Workload(
    "held",
    settings=("free",),
    cases=lambda setting: [(case, ("ours async",)) for case in (*map(str, COUNTS), TRACED)],
    measure=measure,
    charts=[Chart("p50 of a pair in µs by locks held", "free", "p50_us")],
    growth=growth,
)
