"""A lock that is handed on: what hand-on and resume cost, beside acquire and release."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Reason, Target, Workload
from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import Done, clock
from benchmarks.worker.witness import LOOK_EVERY

OURS = ("ours", "ours async")


async def rounds(bench: Bench, *, timed: tuple[str, ...], **timing: Any) -> dict[str, Any]:
    """Acquire, hand on, resume and release; only the steps in `timed` count."""
    names = [name("given", place) for place in range(KEYS)]
    return await bench.measured(partial(_rounds, bench, names, timed), **timing)


async def _rounds(
    bench: Bench, names: list[str], timed: tuple[str, ...], until: float, done: Done
) -> None:
    from redlock_django import resume_lock

    timer = time.perf_counter
    while clock() < until:
        resource, look = names[done.begun % len(names)], done.begun % LOOK_EVERY == 0
        done.begun += 1
        moments = {"acquire": timer()}
        held = await bench.acquire(resource)
        if held is None:
            done.fail("refused, but the lock was free")
            continue
        hands_on, takes = ("atransfer", "aacquire") if _is_async(bench) else ("transfer", "acquire")
        moments["hand on"] = timer()
        ticket = await _value(getattr(held, hands_on)())
        moments["resume"] = timer()
        taken = await _value(getattr(resume_lock(ticket), takes)())
        moments["look"] = timer()
        if look:
            bench.intruder.look(resource)
        moments["release"] = timer()
        await bench.release(taken)
        ends = [*moments.values(), timer()][1:]
        spans = dict(zip(moments, ends, strict=True))
        done.seconds.append(sum(spans[step] - moments[step] for step in timed))


def _is_async(bench: Bench) -> bool:
    return inspect.iscoroutinefunction(bench.contender.acquire)


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


STEPS = {
    "acquire and release": ("acquire", "release"),
    "hand on": ("hand on",),
    "resume": ("resume",),
}
TICKET = Reason(
    "tickets",
    "A ticket is JSON in base64, signed and checked by Django's signing, with a token that is made "
    "by another HMAC.",
    "nothing that is worth it: a task costs more",
)
PAIR, RESUME = (Where("handon", "rtt", case, "ours") for case in ("acquire and release", "resume"))

WORKLOAD = Workload(
    "handon",
    settings=("pin", "rtt"),
    cases=lambda setting: [(case, OURS) for case in STEPS],
    job="handon.rounds",
    how=lambda case: {"timed": STEPS[case]},
    targets=[
        Target(
            "resume a lock that was handed on", "rtt: p50 by acquire and release", 0.75,
            RESUME.by(PAIR), reason=TICKET,
        ),
    ],
)  # fmt: skip
