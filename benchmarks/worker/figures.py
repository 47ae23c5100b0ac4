"""The figures of a job: latencies, rates and processor time."""

from __future__ import annotations

import time
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

    def figures(self, done: Done, intruder: Intruder) -> dict[str, Any]:
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
        }
