"""The programs that measure by themselves: `python -m benchmarks NAME`, one file each.

They share what is here: the test project with other settings, and contenders in this very process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

from benchmarks.harness.results import Results, Row
from benchmarks.harness.workload import Column, Table
from benchmarks.worker.figures import latencies, quantile

NAME = "order:1"
HOLDER = '{"host":"web1","pid":7,"path":"/orders/1/pay/"}'
Key = TypeVar("Key")
Contenders = Mapping[str, Callable[[], object]]
"""For each name of a contender, a function that acquires and releases its lock."""


def configure(**settings: Any) -> None:
    """Set up the test project with these settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ["SHOP_DATABASE"] = ":memory:"
    import django
    from django.conf import settings as django_settings

    for name, value in settings.items():
        setattr(django_settings, name, value)
    django.setup()


def ours(backend: Any) -> dict[str, Callable[[], object]]:
    """Return the pairs of a store, and of `lock()` above it."""
    from redlock_django import lock

    def store() -> None:
        backend.release(backend.acquire((NAME,), 30, 0, HOLDER))

    def whole() -> None:
        with lock(NAME):
            pass

    return {type(backend).__name__: store, "with lock()": whole}


def show_pairs(title: str, contenders: Contenders, rounds: int, pairs: int) -> None:
    """Print the time of a pair of each contender, and its ratio to the first one's.

    In each round every contender does the same number of pairs. A ratio is taken within a round,
    of medians; the median over the rounds counts.
    """
    results = Results()
    for number in range(rounds):
        for name, pair in contenders.items():
            for _ in range(20):
                pair()
            figures = latencies([seconds(pair) for _ in range(pairs)])
            results.add(Row("pairs", "here", "one", name, number, figures))
    place = ("here", "one", "p50_us")
    columns = [
        Column("p50 µs", *place),
        Column("least", *place, reduce=min),
        Column("× first", *place, by=next(iter(contenders))),
    ]
    print("\n".join(Table(title, columns).page(results, "pairs")))


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def show_wakes(backend: Any, wakes: int) -> None:
    """Print how long a waiter needs to hold a lock after its holder began to release it."""

    def hold(wait: bool) -> Callable[[], object]:
        lease = backend.acquire((NAME,), 30, 20 if wait else 0, HOLDER)
        return lambda: backend.release(lease)

    show_hand_off("a waiter is woken", hold, wakes)


def show_hand_off(name: str, hold: Callable[[bool], Callable[[], object]], wakes: int) -> None:
    """Print how long after the begin of a release the waiter holds the lock.

    `hold` acquires the lock, and waits for it if its argument is True; it returns the release.
    """
    took: list[float] = []
    for number in range(wakes):
        release = hold(False)
        ended: list[float] = []

        def wait(ended: list[float] = ended) -> None:
            release = hold(True)
            ended.append(time.perf_counter())
            release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.06 if number else 1.0)  # until it waits; the first makes the process listen
        began = time.perf_counter()
        release()
        waiter.join()
        took.append((ended[0] - began) * 1000)
    p50, p95 = quantile(took, 0.5), quantile(took, 0.95)
    print(f"{name}, ms: p50 {p50:.1f}, p95 {p95:.1f}")


def count_bytecodes(run: Callable[[], object], key_of: Callable[[FrameType], Key]) -> Counter[Key]:
    """Return how many bytecodes of Python `run` runs in this thread, by a key of their frames."""
    counts: Counter[Key] = Counter()

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
