"""The jobs for the async API; `jobs` describes each of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.worker.contender import AsyncContender
from benchmarks.worker.figures import Done, Profile, Span, clock, latencies
from benchmarks.worker.jobs import KEYS, elsewhere, name
from benchmarks.worker.memory import resident, traced, tracing
from benchmarks.worker.witness import LOOK_EVERY, Intruder, Turnstile

CUT = 5.0
"""Seconds after which a pair under faults counts as failed: some contenders never return."""


async def pairs(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    seconds: float,
    warm_up: float = 0.2,
    profile: bool = False,
) -> dict[str, Any]:
    """Acquire and release repeatedly."""
    names = [name("pair", place) for place in range(KEYS)]
    await some_pairs(contender, intruder, names, clock() + warm_up, Done())
    done = Done()
    watch, span = Profile(profile), Span()
    with watch.running():
        await some_pairs(contender, intruder, names, clock() + seconds, done)
    return span.figures(done, intruder, watch)


async def some_pairs(
    contender: AsyncContender, intruder: Intruder, names: list[str], until: float, done: Done
) -> None:
    """Run pairs on each of the names in turn until a time of `clock`; tasks may share `done`."""
    timer = time.perf_counter
    while clock() < until:
        resource, look = names[done.begun % len(names)], done.begun % LOOK_EVERY == 0
        done.begun += 1
        began = timer()
        try:
            held = await contender.acquire(resource)
            if held is None:
                done.fail("refused, but no other client held the lock")
                continue
            taken = timer()
            if look:
                intruder.look(resource)
            leaving = timer()
            await contender.release(held)
            done.seconds.append(timer() - leaving + taken - began)
        except Exception as error:  # noqa: BLE001 - any error is a failed pair
            done.fail(error)


async def refusals(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    seconds: float,
    warm_up: float = 0.2,
    own: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Try to acquire a lock that another process holds; success counts as an overlap.

    With `own`, another task of this process holds it.
    """
    resource = name("held", 0)
    async with holding(contender if own else elsewhere(contender), resource):
        intruder.look(resource)
        await _refusals(contender, intruder, resource, clock() + warm_up)
        watch, span = Profile(profile), Span()
        with watch.running():
            done = await _refusals(contender, intruder, resource, clock() + seconds)
        return span.figures(done, intruder, watch)


async def _refusals(
    contender: AsyncContender, intruder: Intruder, resource: str, until: float
) -> Done:
    done = Done()
    while clock() < until:
        began = time.perf_counter()
        held = await contender.acquire(resource)
        done.seconds.append(time.perf_counter() - began)
        if held is not None:
            intruder.overlaps += 1
            await contender.release(held)
    intruder.looks += len(done.seconds)
    return done


@asynccontextmanager
async def holding(contender: AsyncContender, resource: str) -> AsyncIterator[asyncio.Event]:
    """Hold a resource in another task until the event is set or the block ends."""
    taken, enough = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        held = await contender.wait(resource)
        taken.set()
        await enough.wait()
        await contender.release(held)

    holder = asyncio.ensure_future(hold())
    await asyncio.wait_for(taken.wait(), 30)
    try:
        yield enough
    finally:
        enough.set()
        await holder


async def tasks(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    count: int,
    seconds: float,
    warm_up: float = 0.2,
    profile: bool = False,
    process: int = 0,
) -> dict[str, Any]:
    """Run pairs in many tasks, each with its own key, also among several processes."""
    names = [name(f"{process:02}k{place // 1000}", place % 1000) for place in range(count)]

    def all_of_them(until: float, done: Done) -> Awaitable[Any]:
        return asyncio.gather(
            *(some_pairs(contender, intruder, [own], until, done) for own in names)
        )

    await all_of_them(clock() + warm_up, Done())
    done = Done()
    watch, span = Profile(profile), Span()
    with watch.running():
        await all_of_them(clock() + seconds, done)
    return span.figures(done, intruder, watch)


async def drain(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    folder: str,
    seconds: float,
    waiters: int = 8,
    profile: bool = False,
) -> dict[str, Any]:
    """Repeatedly let waiters queue behind a holder and take one turn of 1 ms each."""
    gate, gaps = Turnstile(f"{folder}/turn"), []
    watch = Profile(profile)
    began, drains = clock(), 0
    while clock() < began + seconds or drains < 2:
        resource, drains = name("drain", drains % KEYS), drains + 1
        turns: list[tuple[float, float]] = []

        async def turn(resource: str = resource, turns: list[tuple[float, float]] = turns) -> None:
            held = await contender.wait(resource)
            taken = clock()
            with gate:
                await asyncio.sleep(0.001)
            turns.append((taken, clock()))
            await contender.release(held)

        async with holding(contender, resource) as enough:
            queue = [asyncio.ensure_future(turn()) for _ in range(waiters)]
            await asyncio.sleep(0.05)
            left = clock()
            enough.set()
        with watch.running():
            await asyncio.gather(*queue)
        for taken, leaving in sorted(turns):
            gaps.append(taken - left)
            left = leaving
    return {
        **latencies(gaps),
        "turns": len(gaps),
        "looks": len(gaps),
        "overlaps": gate.overlaps,
        **({"profile": watch.lines()} if watch else {}),
    }


async def connect(contender: AsyncContender, intruder: Intruder) -> dict[str, Any]:
    """Connect to the masters, by a lock that no other process asks for."""
    await contender.release(await contender.wait(name("turns", os.getpid())))
    return {}


async def turns(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    folder: str,
    start: float,
    end: float,
    pause: float,
) -> dict[str, Any]:
    """Take turns of 1 ms with other processes; `start` and `end` are times of `clock`."""
    gate, resource = Turnstile(f"{folder}/turn"), name("turns", 0)
    ours: list[list[float]] = []
    await asyncio.sleep(max(0.0, start - clock()))
    while (asked := clock()) < end:
        held = await contender.wait(resource)
        taken = clock()
        with gate:
            await asyncio.sleep(0.001)
        leaving = clock()
        await contender.release(held)
        ours.append([asked, taken, leaving])
        if pause:
            await asyncio.sleep(pause)
    return {"turns": ours, "looks": len(ours), "overlaps": gate.overlaps}


async def under_faults(
    contender: AsyncContender, intruder: Intruder, *, seconds: float, down: int = 0
) -> dict[str, Any]:
    """Pairs while masters fail, the first `down` of them; gives each as [began, took, done]."""
    events: list[list[Any]] = []
    until, place = clock() + seconds, 0
    while (began := clock()) < until:
        resource = name("fault", place % KEYS)
        place += 1
        one = _one(contender, intruder, resource, down if place % 64 == 0 else None)
        try:
            took, done = await asyncio.wait_for(one, CUT)
        except TimeoutError:
            took, done = clock() - began, False
        events.append([began, took, done])
    return {"events": events, "looks": intruder.looks, "overlaps": intruder.overlaps}


async def _one(
    contender: AsyncContender, intruder: Intruder, resource: str, down: int | None
) -> tuple[float, bool]:
    began = time.perf_counter()
    taken = began
    try:
        held = await contender.acquire(resource)
        taken = leaving = time.perf_counter()
        if held is None:
            return taken - began, False
        if down is not None:
            intruder.look(resource, down)
            leaving = time.perf_counter()
        await contender.release(held)
    except Exception:  # noqa: BLE001 - any error is a failed pair
        return time.perf_counter() - began, False
    return time.perf_counter() - leaving + taken - began, True


async def hold_many(
    contender: AsyncContender,
    intruder: Intruder,
    *,
    count: int,
    seconds: float,
    trace: bool = False,
) -> dict[str, Any]:
    """Hold `count` locks and run pairs at the same time; the locks are still held on return.

    Memory of this process for each of them, in bytes: resident, and with `trace` as
    tracemalloc counts it.
    """
    await some_pairs(contender, intruder, [name("pair", 0)], clock() + 0.2, Done())
    before = resident()
    held: list[Any] = []
    done = Done()
    with tracing(trace):
        queue = iter(range(count))

        async def take() -> None:
            for place in queue:  # shared by all tasks
                resource, taken = name(f"h{place // 1000}", place % 1000), None
                while taken is None:
                    try:
                        taken = await contender.acquire(resource)
                    except Exception as error:  # noqa: BLE001 - any error is a failed pair
                        done.fail(error)
                held.append(taken)

        await asyncio.gather(*(take() for _ in range(min(count, 100))))
        bytes_traced = traced()
    bytes_resident = resident() - before
    await some_pairs(contender, intruder, [name("pair", 0)], clock() + seconds, done)
    intruder.look(name(f"h{(count - 1) // 1000}", (count - 1) % 1000))
    _kept.extend(held)
    return {
        **latencies(done.seconds),
        "failed": done.failed,
        "why": done.why,
        "client_bytes": bytes_resident / count,
        "client_bytes_traced": bytes_traced / count,
        "looks": intruder.looks,
        "overlaps": intruder.overlaps,
    }


_kept: list[Any] = []
