"""Acquire and release repeatedly; the same with a hand-on in between."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import Any

from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import Done, clock
from benchmarks.worker.witness import LOOK_EVERY


async def pairs(bench: Bench, **timing: Any) -> dict[str, Any]:
    """Acquire and release repeatedly."""
    names = [name("pair", place) for place in range(KEYS)]
    return await bench.measured(partial(bench.pairs, names), **timing)


async def handed_on(bench: Bench, *, timed: tuple[str, ...], **timing: Any) -> dict[str, Any]:
    """Acquire, hand on, resume and release; only the steps in `timed` count."""
    names = [name("given", place) for place in range(KEYS)]
    return await bench.measured(partial(_rounds, bench, names, timed), **timing)


async def _rounds(
    bench: Bench, names: list[str], timed: tuple[str, ...], until: float, done: Done
) -> None:
    from redlock_django import resume_lock

    timer, is_async = time.perf_counter, bench.contender.api == "async"
    transfer, acquire = ("atransfer", "aacquire") if is_async else ("transfer", "acquire")
    while clock() < until:
        resource, look = names[done.begun % len(names)], done.begun % LOOK_EVERY == 0
        done.begun += 1
        moments = {"acquire": timer()}
        held = await bench.acquire(resource)
        if held is None:
            done.fail("refused, but the lock was free")
            continue
        moments["hand on"] = timer()
        ticket = await _value(getattr(held, transfer)())
        moments["resume"] = timer()
        resumed = await _value(getattr(resume_lock(ticket), acquire)())
        moments["look"] = timer()
        if look:
            bench.intruder.look(bench.contender.key(resource))
        moments["release"] = timer()
        await bench.release(resumed)
        ends = [*moments.values(), timer()][1:]
        spans = dict(zip(moments, ends, strict=True))
        done.seconds.append(sum(spans[step] - moments[step] for step in timed))


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
