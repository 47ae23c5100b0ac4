"""Is what real workers saw of a lock what a fenced mutex with leases would have shown them?

A history is linearizable if every grant can be given one moment between its asking and its
answer such that, in the order of these moments, each grant comes after the end of the lease
before it and has a higher fence. To find such moments one has to search, in general (Wing and
Gong; Lowe), because nobody knows the order. Here everybody does: the specification allows no other
order of the grants than that of their fences. So they are sorted once, each is put at the
earliest moment that is left to it, and the history is right exactly if that moment is not after
its answer. `test_history.py` compares this with the search.

An unknown outcome (a worker that was killed before it was answered) needs no search either: if it
was a grant, its fence was seen by nobody, and its lease may have ended at any later moment, so the
history without it is right whenever the one with it is.

A lease is held from its answer until its release was asked for, or until its deadline by its
worker's own clock. All workers share that clock (CLOCK_BOOTTIME, which the leases are measured
by: CLOCK_MONOTONIC plus the time the machine slept). Who is stopped beyond the deadline and then
goes on does not hold the lock, whatever it believes; what it writes, the register must refuse.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Event(NamedTuple):
    """What a worker did or was told, in the order in which it says so.

    `what` is "acquire", "granted", "refused", "renew", "renewed", "lost", "release", "released",
    or about the register "write", "wrote", "rejected". A renewal made in the
    background is only ever "renewed". Questions are told before they are asked, answers after they
    are there. `until` is the lease's deadline, `entry` what is written.
    """

    worker: str
    what: str
    at: float
    resource: str
    fence: int = 0
    until: float = 0.0
    entry: str = ""


class Write(NamedTuple):
    """What the register saw, in its own order: `entry`, written by who had read `after`.

    `stood` is what really stood there. A claim has no entry.
    """

    resource: str
    entry: str
    after: str
    stood: str
    fence: int


@dataclass
class HeldLease:
    """One grant and what became of it; moments are seconds of the common clock."""

    worker: str
    resource: str
    fence: int
    asked: float
    granted: float
    until: float
    released: float = math.inf

    @property
    def ended(self) -> float:
        """From when on somebody else may hold the resource."""
        return min(self.until, self.released)

    def __str__(self) -> str:
        return f"{self.resource}, fence {self.fence}, worker {self.worker}"


def holds(events: Iterable[Event]) -> tuple[list[HeldLease], list[str]]:
    """Every hold in a history, and what no worker can have seen.

    Each worker does one thing after the other.
    """
    found: list[HeldLease] = []
    wrong: list[str] = []
    asked: dict[str, Event] = {}  # by worker: the acquire or renewal that is not answered yet
    held: dict[str, HeldLease] = {}
    now: dict[str, float] = {}
    for event in events:
        worker, what = event.worker, event.what
        if event.at < now.get(worker, -math.inf):
            wrong.append(f"{event}: before the event in front of it")
        now[worker] = event.at
        hold = held.get(worker)
        if what == "acquire":
            asked[worker] = event
        elif what == "granted":
            question = asked.pop(worker, None)
            if question is None or question.resource != event.resource:
                wrong.append(f"{event}: granted without having asked")
                continue
            held[worker] = hold = HeldLease(
                worker, event.resource, event.fence, question.at, event.at, event.until
            )
            found.append(hold)
        elif what == "renew":
            asked[worker] = event
        elif what == "renewed":
            question = asked.pop(worker, event)
            if hold is None or hold.released < math.inf:
                wrong.append(f"{event}: renewed what was not held")
            elif question.what == "renew" and question.at > hold.until:
                wrong.append(f"{event}: asked for after the deadline, {hold.until}")
            elif event.until < hold.until:
                wrong.append(f"{event}: shortened, from {hold.until}")
            else:
                hold.until = event.until
        elif what == "lost" and hold is not None:
            asked.pop(worker, None)
            hold.until = min(hold.until, event.at)
        elif what == "release" and hold is not None:
            hold.released = event.at
        elif what == "refused":
            asked.pop(worker, None)
    return found, wrong


def broken_order(found: Iterable[HeldLease]) -> list[str]:
    """The grants that no fenced mutex could have given at any moment between question and answer.

    Linear after the sorting: the module's docstring says why.
    """
    by_resource: dict[str, list[HeldLease]] = defaultdict(list)
    for hold in found:
        by_resource[hold.resource].append(hold)
    wrong = []
    for every in by_resource.values():
        every.sort(key=lambda hold: hold.fence)
        last = latest = longest = every[0]
        for hold in every[1:]:
            if hold.fence == last.fence:
                wrong.append(f"{hold}: the fence was granted before, to worker {last.worker}")
            elif hold.granted < latest.asked:
                wrong.append(f"{hold}: granted before fence {latest.fence} was asked for")
            elif hold.granted < longest.ended:
                wrong.append(
                    f"{hold}: granted {longest.ended - hold.granted:.6f} s before the lease of "
                    f"{longest} ended"
                )
            last = hold
            latest = max(latest, hold, key=lambda one: one.asked)
            longest = max(longest, hold, key=lambda one: one.ended)
    return wrong


def broken_fences(writes: Iterable[Write], found: Iterable[HeldLease]) -> list[str]:
    """The writes that a register accepted under a fence lower than one before, or nobody's."""
    granted = {(hold.resource, hold.fence) for hold in found}
    highest: dict[str, int] = defaultdict(int)
    wrong = []
    for write in writes:
        if write.fence < highest[write.resource]:
            wrong.append(f"{write}: accepted after fence {highest[write.resource]}")
        elif (write.resource, write.fence) not in granted:
            wrong.append(f"{write}: nobody was granted that fence")
        highest[write.resource] = max(highest[write.resource], write.fence)
    return wrong


def lost_updates(writes: Sequence[Write], events: Iterable[Event] = ()) -> list[str]:
    """The entries that a register had, or said it had, and that its last state does not build on.

    Each entry names the one it was appended to, so the last one leads to all that are kept.
    """
    after: dict[str, str] = {}
    last: dict[str, str] = {}
    for write in writes:
        if write.entry:
            after[write.entry] = write.after
            last[write.resource] = write.entry
    kept = set()
    for entry in last.values():
        while entry in after and entry not in kept:
            kept.add(entry)
            entry = after[entry]
    told = {event.entry: None for event in events if event.what == "wrote"}
    return [entry for entry in {**after, **told} if entry not in kept]


def overslept(found: Iterable[HeldLease]) -> tuple[int, int]:
    """How many holders went on beyond their deadline, and how many of them met a newer holder.

    Only those that came back to release are counted: a killed one believes nothing.
    """
    late = [hold for hold in found if hold.until < hold.released < math.inf]
    every: dict[str, list[HeldLease]] = defaultdict(list)
    for hold in found:
        every[hold.resource].append(hold)
    met = [
        hold
        for hold in late
        if any(hold.fence < o.fence and o.granted < hold.released for o in every[hold.resource])
    ]
    return len(late), len(met)
