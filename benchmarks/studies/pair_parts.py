"""The costs of the steps of a pair and of a refusal, in bytecodes and processor time of the client.

`uv run python -m benchmarks pair_parts` prints a table of each, without the kernel and with hot
caches (`studies/hot.py`). A version of Python runs the same bytecodes on every machine; the time
depends on the processor, and its shares are taken from samples, so they scatter by a few percent.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import redlock_django
from benchmarks import site
from benchmarks.contenders import Place
from benchmarks.contenders.ours import Threads
from benchmarks.studies.hot import (
    BATCH,
    Memory,
    Work,
    batch,
    run_pairs,
    run_refusals,
    settle,
)
from benchmarks.targets.results import markdown
from benchmarks.worker.figures import clock
from redlock_django.testing import local_masters

SECONDS = 3.0
"""How long each is timed."""

SAMPLE = 0.0005
"""Seconds between two samples of what is running."""

PACKAGE = f"{Path(redlock_django.__file__).parent}/"
LOOP = "the benchmark itself"
STEPS: dict[str, tuple[str, ...]] = {
    "receive the replies": (
        "wire/links/replies.py",
        "wire/drivers/sockets.py:Sockets.read",
        "wire/links/link.py:Exchange.decide",
        "engine/quorum.py:Tally.cast",
        "engine/quorum.py:Tally._judge",
    ),
    "send to the links": (
        "wire/drivers/sockets.py:Sockets.flush",
        "wire/drivers/sockets.py:LinkSocket",
    ),
    "begin the rounds": (
        "wire/links/links.py",
        "wire/links/resp.py",
        "wire/links/link.py",
    ),
    "drive the rounds: mutex, reader, poll": ("wire/",),
    "make and judge the rounds": ("engine/",),
    "the store": ("backends/",),
    "above the store: `Lock`, caller, reports, renewal": ("",),
}
"""The functions of each step, by the beginning of file:function; the longest one that fits counts.

What these call outside of the package is a part of their step.
"""
_STEP_OF = {place: step for step, places in STEPS.items() for place in places}
PLACES = sorted(_STEP_OF, key=len, reverse=True)


TITLES: dict[Work, str] = {run_pairs: "a pair", run_refusals: "a refusal"}
LOOPS = [work.__code__ for work in TITLES]


def main() -> None:
    """Print the tables."""
    with local_masters(5) as masters:
        place = Place(site.section([("127.0.0.1", master.port) for master in masters]))
        site.configure(place)
        contender = Threads(place)
        settle(contender)
        gc.collect()
        gc.freeze()  # as in the workers
        with Memory() as memory:
            codes = bytecodes(contender, memory)
            for work in TITLES:
                best, shares = timed(contender, memory, work, SECONDS)
                print("\n".join(table(work, codes[work], best, shares)), end="\n\n")


def table(
    work: Work, codes: Counter[tuple[str, str]], best: float, shares: Counter[str]
) -> Iterator[str]:
    """Yield the table, and the time of a bytecode.

    `codes` are the bytecodes of a batch by step and function, `best` is the time of one of it in
    µs, `shares` are samples by step.
    """
    steps: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (step, function), count in codes.items():
        steps[step][function] += count
    total, samples = codes.total() / BATCH, shares.total() or 1
    rows = []
    for step, functions in sorted(steps.items(), key=lambda item: -item[1].total()):
        most = ", ".join(f"`{name}` {n / BATCH:.0f}" for name, n in functions.most_common(4))
        time = best * shares[step] / samples
        rows.append([step, f"{functions.total() / BATCH:,.0f}", f"{time:.1f}", most])
    rows.append([f"**{TITLES[work]}**", f"**{total:,.0f}**", f"**{best:.1f}**", ""])
    yield markdown(["Step", "Bytecodes", "µs", "Functions with the most bytecodes"], rows)
    if work is run_pairs:
        version = ".".join(map(str, sys.version_info[:3]))
        yield (f"\nPython {version}: {best / total * 1000:.1f} ns for each bytecode.")


def bytecodes(contender: Any, memory: Memory) -> dict[Work, Counter[tuple[str, str]]]:
    """Return the bytecodes of a batch of each work by step and function."""
    places: set[str | None] = set()

    def key_of(frame: FrameType) -> tuple[str, str]:
        code = frame.f_code
        places.add(place_of(code))
        return step_of(frame), code.co_qualname.replace("__create_fn__.<locals>.", "dataclass ")

    counts = {}
    for work in TITLES:
        batch(contender, memory, work)  # caches are hot now
        memory.answer(work)
        counts[work] = count_bytecodes(partial(work, contender), key_of)
    require_all_steps(places)
    return counts


def count_bytecodes(
    run: Callable[[], object], key_of: Callable[[FrameType], tuple[str, str]]
) -> Counter[tuple[str, str]]:
    """Return how many bytecodes of Python `run` runs in this thread, by a key of their frames."""
    counts: Counter[tuple[str, str]] = Counter()

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        key = key_of(frame)

        def count(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                counts[key] += 1
            return count

        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    # Python 3.12 traces bytecodes only if a frame asks for it before the trace begins.
    sys._getframe().f_trace_opcodes = True
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return counts


def timed(contender: Any, memory: Memory, work: Work, seconds: float) -> tuple[float, Counter[str]]:
    """Return the time of a pair or refusal in µs, the best of all batches, and samples by step."""
    samples: Counter[str] = Counter()
    best, until = float("inf"), clock() + seconds

    def sample(number: int, frame: FrameType | None) -> None:
        if frame is not None and (step := step_of(frame)):
            samples[step] += 1

    while clock() < until or best == float("inf"):
        best = min(best, batch(contender, memory, work))
    before = signal.signal(signal.SIGALRM, sample)
    signal.setitimer(signal.ITIMER_REAL, SAMPLE, SAMPLE)
    try:
        while clock() < until + seconds:
            batch(contender, memory, work)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return best, samples


def step_of(frame: FrameType) -> str:
    """Return the step that a frame is a part of; an empty string outside of the work."""
    inner: FrameType | None = frame
    while inner is not None:
        code = inner.f_code
        if code in LOOPS:
            return LOOP
        if (place := place_of(code)) is not None:
            return _STEP_OF[place]
        inner = inner.f_back
    return ""


def place_of(code: CodeType) -> str | None:
    """Return the entry of STEPS that a function belongs to; None outside of the package."""
    if not code.co_filename.startswith(PACKAGE):
        return None
    where = f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}"
    return next(place for place in PLACES if where.startswith(place))


def require_all_steps(seen: set[str | None]) -> None:
    """Raise RuntimeError if no function of a pair belongs to an entry of STEPS."""
    if unseen := [place for place in PLACES if place not in seen]:
        raise RuntimeError(
            f"no function of a pair is in {', '.join(unseen)}: update STEPS in "
            "benchmarks/programs/pair_parts.py for the present names"
        )
