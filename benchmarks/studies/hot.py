"""Pairs and refusals without the kernel: memory in place of sockets and poll, and hot caches.

What is left is the project's own Python code, so the figures scatter less than any with servers.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from math import inf
from struct import pack
from typing import Any, Self
from unittest.mock import patch

from benchmarks.contenders import Contender
from benchmarks.worker.figures import clock
from redlock_django import locks
from redlock_django.engine.protocol.statuses import Status
from redlock_django.wire.clock import clock as link_clock
from redlock_django.wire.drivers import threads

BATCH = 100  # pairs, or refusals, between two looks at the clock
RIVAL = b"0123456789abcdef" * 2
REPLIES: Mapping[str, Callable[[int, int], bytes]] = {
    "acquired": lambda number, now: b"$32\r\n%b\r\n" % pack(
        "<4q", number, Status.GRANTED, now, 7
    ),
    "released": lambda number, now: b"$24\r\n%b\r\n" % pack("<3q", number, Status.GRANTED, 0),
    "refused": lambda number, now: b"$88\r\n%b\r\n" % pack(
        "<7q32s", number, Status.REFUSED, now, 1, 30_000, 7, -1, RIVAL
    ),
}  # fmt: skip
"""The reply of a master to the round of that number, as its clock shows so many µs."""

Work = Callable[[Contender], None]
"""Does something BATCH times, to which the replies of `ANSWERS` are prepared."""


def driver() -> Any:
    """Return what drives the links of the alias "default" for threads."""
    backend: Any = locks["default"].backend
    return backend.thread_driver()


class Memory:
    """The masters of the alias "default", which answer from memory; see `settle`."""

    def __init__(self) -> None:
        self.driver: Any = driver()
        self.links: Any = self.driver.links

    def __enter__(self) -> Self:
        self.replaced = ExitStack()
        # Set here, and not by `patch`, which reads `__dict__`: that slows an object down for ever.
        combiner = self.driver.combiner
        self.replaced.callback(setattr, combiner, "poller", combiner.poller)
        combiner.poller = _Readable(self.links.masters)
        # The tender thread must take no reply between a round and its poll, which has one for each.
        self.replaced.enter_context(patch.object(type(self.links), "owing", lambda links: []))
        # After a stall, what came meanwhile is read before a round: here, the reply to that round.
        self.replaced.enter_context(patch.object(threads, "IDLE", 1e9))
        return self

    def __exit__(self, *exception: object) -> None:
        self.replaced.close()  # the links are out of step with their masters now

    def answer(self, work: Work) -> None:
        """Prepare the replies to a batch of work."""
        first = next(self.links._numbers) + 1  # a number is skipped, for itertools has no peek
        now = time.time_ns() // 1000
        kinds = ANSWERS[work] * BATCH
        replies = [REPLIES[kind](first + at, now) for at, kind in enumerate(kinds)]
        for master in self.links.masters:
            connection = master.link.connection
            connection.recv, connection.send_some = partial(next, iter(replies)), len
            master.inspect_at = link_clock() + 1e6
            # The replies are made before they are asked for: their clock stands still meanwhile.
            master.steady = (-inf, inf, inf)


class _Readable:
    """A poll that finds all masters readable at once."""

    def __init__(self, masters: list[Any]) -> None:
        self.masters = masters

    def poll(self, seconds: float) -> tuple[list[Any], list[Any]]:
        """Return all masters, and none that takes more bytes."""
        return self.masters, []


def cost(contender: Contender, *, seconds: float) -> dict[str, Any]:
    """Return the processor time of a pair in µs, the best batch of all, and the calls it makes."""
    settle(contender)
    until, best, batches = clock() + seconds, float("inf"), 0
    with Memory() as memory:
        while clock() < until or batches < 3:
            best, batches = min(best, batch(contender, memory, run_pairs)), batches + 1
        profile = cProfile.Profile()
        memory.answer(run_pairs)
        profile.enable()
        run_pairs(contender)
        profile.disable()
    calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return {"cpu_us": best, "calls": calls / BATCH, "pairs": batches * BATCH}


def settle(contender: Contender) -> None:
    """Lock until every master is connected, and wait until none owes a reply.

    A majority is enough for a lock. A reply that a master owes from before would be looked for
    among the prepared ones, which answer other rounds.
    """
    links = driver().links
    while (joining := not all(master.link for master in links.masters)) or links.owing():
        if joining:
            contender.release(contender.acquire("hot"))
        else:
            time.sleep(0.01)  # the tender thread reads it


def batch(contender: Contender, memory: Memory, work: Work) -> float:
    """Return the processor time of a pair or refusal in µs, the average of one batch."""
    memory.answer(work)
    began = time.thread_time()
    work(contender)
    return (time.thread_time() - began) / BATCH * 1e6


def run_pairs(contender: Contender) -> None:
    """Run one batch of pairs."""
    for _ in range(BATCH):
        contender.release(contender.acquire("hot"))


def run_refusals(contender: Contender) -> None:
    """Run one batch of refusals."""
    for _ in range(BATCH):
        if contender.acquire("hot") is not None:
            raise RuntimeError("a master that refuses has granted a lock")


ANSWERS: Mapping[Work, tuple[str, ...]] = {
    run_pairs: ("acquired", "released"),
    run_refusals: ("refused",),
}
