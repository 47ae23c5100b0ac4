"""A description of the machine, without which figures mean nothing."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path

import django


def sentence(others: float, seconds: float) -> str:
    """Return where and when was measured, how fast that machine is, and how busy others kept it.

    The loop is always the same: divide absolute figures of two machines by its time.
    """
    return (
        f"Measured on {time.strftime('%-d %B %Y, %H:%M %Z')} in {seconds:.0f} s: {_processor()}, "
        f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"Django {django.__version__}, a loop of 20,000 turns in Python {_loop_ms():.1f} ms; "
        f"other programs used {others:.1f} processors, load {load()}."
    )


def _loop_ms() -> float:
    """Return the processor time of a fixed loop in ms, the best of many."""
    best = float("inf")
    for _ in range(50):
        began = time.thread_time()
        _turns()
        best = min(best, time.thread_time() - began)
    return best * 1000


class _Place:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def next(self) -> int:
        return self.number + 1


def _turns() -> None:
    """Do what Python code mostly does: make objects, call methods, use a dict."""
    found: dict[int, int] = {}
    for number in range(20_000):
        found[number & 63] = _Place(number).next()


class Others:
    """The processor time that programs other than this run have used since this was created."""

    def __init__(self) -> None:
        self._began, self._used, self._stolen = time.monotonic(), _used_by_others(), _stolen()

    def share(self) -> float:
        """Return the number of processors that they used, on average.

        Includes what the host of a virtual machine took away. A program that came and went
        meanwhile is not noticed.
        """
        used = sum(
            seconds - self._used.get(process, 0.0) for process, seconds in _used_by_others().items()
        )
        return (used + _stolen() - self._stolen) / (time.monotonic() - self._began)


_TICK = 1 / os.sysconf("SC_CLK_TCK")


def _used_by_others() -> dict[tuple[int, str], float]:
    """Return the processor time of each program that is neither this run nor the kernel."""
    parents: dict[int, int] = {}
    used: dict[tuple[int, str], float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name may contain anything. After it: state, parent, ... (proc(5))
            pid, said = int(path.parent.name), path.read_text().rpartition(")")[2].split()
            parents[pid] = int(said[1])
            used[pid, said[19]] = (int(said[11]) + int(said[12])) * _TICK
    own = {os.getpid(), 2}  # 2 is the parent of the kernel's threads
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {process: seconds for process, seconds in used.items() if process[0] not in own}


def _stolen() -> float:
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) * _TICK


def load() -> str:
    """Return the load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{each:.2f}" for each in os.getloadavg())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
