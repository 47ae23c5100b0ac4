"""Pairs while servers hang, end and return."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import Any

from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import clock, quantile

CUT = 5.0
"""Seconds after which a pair counts as failed: some async contenders never return."""


async def without(bench: Bench, *, down: int) -> None:
    """Exclude the first masters from what the intruder asks: they hang or are dead."""
    bench.intruder.down = down


async def pairs(bench: Bench, *, seconds: float) -> dict[str, Any]:
    """Run pairs while masters fail; return each as [began, took, done]."""
    events: list[list[Any]] = []
    until, finished = clock() + seconds, 0
    while (began := clock()) < until:
        one = pair(bench, name("fault", len(events) % KEYS), look=finished % KEYS == 0)
        try:
            took, done = await bench.limited(one, CUT)
        except TimeoutError:
            took, done = clock() - began, False
        finished += done
        events.append([began, took, done])
    return {"events": events, "looks": bench.intruder.looks, "overlaps": bench.intruder.overlaps}


async def pair(bench: Bench, resource: str, *, look: bool) -> tuple[float, bool]:
    """Return the seconds of a pair, and whether it succeeded."""
    timer = time.perf_counter
    began = timer()
    try:
        held = await bench.acquire(resource)
        taken = leaving = timer()
        if held is None:
            return taken - began, False
        if look:
            bench.intruder.look(bench.contender.key(resource, held))
            leaving = timer()
        await bench.release(held)
    except Exception:  # noqa: BLE001 - any error is a failed pair
        return timer() - began, False
    return timer() - leaving + taken - began, True


def after(events: list[list[Any]], struck: float, *, refused: bool) -> dict[str, float]:
    """Return the figures of all pairs that ended after the fault, also if they began before."""
    ended = [(took, done) for began, took, done in events if began + took >= struck]
    took = [each for each, done in ended if done is not refused]
    figures = {
        "success": sum(done for _, done in ended) / max(len(ended), 1),
        "max_us": max((each for each, _ in ended), default=0.0) * 1e6,
        "pairs": len(ended),
    }
    if took:
        figures |= {"p50_us": quantile(took, 0.5) * 1e6, "p99_us": quantile(took, 0.99) * 1e6}
    return figures


async def outage(bench: Bench, *, seconds: float) -> float:
    """Return the longest time between the ends of two pairs, whatever fails in between."""
    longest, last = 0.0, clock()
    until = last + seconds
    for number in itertools.count():
        if (now := clock()) > until:
            break
        with suppress(Exception):  # each library has its own errors for a server that is gone
            # Another name each time: a lock that could not be released is held for its TTL.
            if (held := await bench.acquire(name("gap", number))) is not None:
                await bench.release(held)
                now = clock()
                longest, last = max(longest, now - last), now
                continue
        await bench.sleep(0.002)
    return max(longest, now - last)
