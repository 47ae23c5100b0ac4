"""The figures of a job: latencies, rates, processor time and profiles."""

from __future__ import annotations

import cProfile
import pstats
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.worker.witness import Intruder

clock = time.monotonic  # one clock for all processes of a machine


def quantile(values: list[float], share: float) -> float:
    """Return the value below which the share `share` of the values is; 0.0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def latencies(seconds: list[float]) -> dict[str, float]:
    """Return p50, p99 and the maximum in µs."""
    return {
        "p50_us": quantile(seconds, 0.5) * 1e6,
        "p99_us": quantile(seconds, 0.99) * 1e6,
        "max_us": max(seconds, default=0.0) * 1e6,
    }


class Done:
    """The pairs of a job: the seconds of each, the number of failures, and the last error."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begun = self.failed = 0
        self.why = ""

    def fail(self, why: object) -> None:
        """Count a failed pair."""
        self.failed += 1
        self.why = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)

    def take(self, other: Done) -> None:
        """Add the pairs of another thread."""
        self.seconds += other.seconds
        self.failed += other.failed
        self.why = other.why or self.why


class Span:
    """Wall and processor time of the whole process since it was created."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def figures(self, done: Done, intruder: Intruder, profile: Profile) -> dict[str, Any]:
        """Return the figures of a job with these pairs."""
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        pairs = len(done.seconds)
        return {
            "pairs": pairs,
            "failed": done.failed,
            **({"why": done.why} if done.failed else {}),
            "per_s": pairs / wall,
            "cpu_us": cpu / max(pairs, 1) * 1e6,
            **latencies(done.seconds),
            "looks": intruder.looks,
            "overlaps": intruder.overlaps,
            **profile.figures(),
        }


class Profile:
    """cProfile around a part of a job, and the shares of its functions."""

    def __init__(self, wanted: bool) -> None:
        self._profiler = cProfile.Profile() if wanted else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Profile this thread during the block."""
        if self._profiler is None:
            yield
            return
        self._profiler.enable()
        try:
            yield
        finally:
            self._profiler.disable()

    def figures(self) -> dict[str, Any]:
        """Return [share of the total time, function] by own time, down to 0.2 %, as `profile`."""
        if self._profiler is None:
            return {}
        stats: dict[Any, Any] = pstats.Stats(self._profiler).stats  # type: ignore[attr-defined]
        total = sum(entry[2] for entry in stats.values()) or 1.0
        ranked = sorted(stats.items(), key=lambda item: -item[1][2])
        shares = [[round(entry[2] / total, 4), _name(where)] for where, entry in ranked]
        return {"profile": [each for each in shares if each[0] >= 0.002]}


def _name(where: tuple[str, int, str]) -> str:
    path, _, function = where
    if path == "~":
        return re.sub(r"[<>']|method |built-in ", "", function)
    place = path.replace("\\", "/").split("/")
    return f"{'/'.join(place[-2:])}:{function}"
