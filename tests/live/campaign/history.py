"""A checker: could a correct fenced mutex with leases have produced this history of a lock?

`python3 tests/live/campaign/history.py HISTORY.jsonl` checks what a campaign has written, without
the package; the exit status is 1 if it is broken, or has no grant.

A history is linearizable if every grant can be assigned a moment between its request and its
reply such that, in the order of these moments, each grant comes after the end of the previous
lease and has a higher fence. In general such moments have to be searched for (Wing and Gong;
Lowe), because the order is unknown. Here it is known: the specification allows only the order of
the fences. So the grants are sorted once, each is assigned the earliest possible moment, and the
history is correct exactly if no such moment is after its reply. `test_history.py` compares this
with the search.

An unknown outcome (a worker was killed before its reply) needs no search either: if it was a
grant, no worker saw its fence, and its lease may have ended at any later moment. So the history
without it is correct whenever the history with it is.

A lease is held from its reply until its release is requested, or until its deadline by its
worker's clock. All workers share that clock (CLOCK_BOOTTIME, by which leases are measured:
CLOCK_MONOTONIC plus the time for which the machine was suspended). A worker that is stopped beyond
its deadline and then continues does not hold the lock.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Event(NamedTuple):
    """One step of a worker, in the order in which the worker reports its steps.

    `what` is "acquire", "granted", "refused", "renewed", "release" or "released". A permit is
    requested by its name, and granted and renewed as the resource of its slot. A request is
    reported before it is sent, a reply after it has arrived. `until` is the deadline of the lease.
    For "own", the try of an uncontended lock, `until` is its latency and `entry` its result.
    """

    worker: str
    what: str
    at: float
    resource: str
    fence: int = 0
    until: float = 0.0
    entry: str = ""


@dataclass
class ObservedLease:
    """A grant and the end of its lease; moments are seconds of the common clock."""

    worker: str
    resource: str
    fence: int
    asked: float
    granted: float
    until: float
    released: float = math.inf

    @property
    def ended(self) -> float:
        """The moment from which another worker may hold the resource."""
        return min(self.until, self.released)

    def __str__(self) -> str:
        return f"{self.resource}, fence {self.fence}, worker {self.worker}"


class Broken(NamedTuple):
    """A grant that no fenced mutex could have made, the earlier one that shows it, and why."""

    lease: ObservedLease
    earlier: ObservedLease
    why: str

    def __str__(self) -> str:
        return f"{self.lease}: {self.why}"


def observed_leases(events: Iterable[Event]) -> tuple[list[ObservedLease], list[str]]:
    """Return every lease in a history, and an error for each impossible event.

    Each worker does one step after the other.
    """
    found: list[ObservedLease] = []
    wrong: list[str] = []
    asked: dict[str, Event] = {}  # by worker: the acquire without a reply yet
    held: dict[str, ObservedLease] = {}
    now: dict[str, float] = {}
    for event in events:
        worker, what = event.worker, event.what
        if event.at < now.get(worker, -math.inf):
            wrong.append(f"{event}: earlier than the event before it")
        now[worker] = event.at
        lease = held.get(worker)
        if what == "acquire":
            asked[worker] = event
        elif what == "granted":
            question = asked.pop(worker, None)
            if question is None or _name(question.resource) != _name(event.resource):
                wrong.append(f"{event}: granted without a request")
                continue
            held[worker] = lease = ObservedLease(
                worker, event.resource, event.fence, question.at, event.at, event.until
            )
            found.append(lease)
        elif what == "renewed":
            if lease is None or lease.released < math.inf:
                wrong.append(f"{event}: renewed without a held lease")
            elif event.until < lease.until:
                wrong.append(f"{event}: shortened, from {lease.until}")
            else:
                lease.until = event.until
        elif what == "release" and lease is not None:
            lease.released = event.at
        elif what == "refused":
            asked.pop(worker, None)
    return found, wrong


def _name(resource: str) -> str:
    """Return the name of which a resource is a slot."""
    return resource.partition("[")[0]


def broken_order(found: Iterable[ObservedLease]) -> list[Broken]:
    """Return each grant that no fenced mutex could have made.

    Takes linear time after the sorting: see the docstring of the module.
    """
    by_resource: dict[str, list[ObservedLease]] = defaultdict(list)
    for lease in found:
        by_resource[lease.resource].append(lease)
    wrong = []
    for every in by_resource.values():
        every.sort(key=lambda lease: lease.fence)
        last = latest = longest = every[0]
        for lease in every[1:]:
            if lease.fence == last.fence:
                why = f"the fence was granted before, to worker {last.worker}"
                wrong.append(Broken(lease, last, why))
            elif lease.granted < latest.asked:
                why = f"granted before fence {latest.fence} was requested"
                wrong.append(Broken(lease, latest, why))
            elif lease.granted < longest.ended:
                early = longest.ended - lease.granted
                why = f"granted {early:.6f} s before the lease of {longest} ended"
                wrong.append(Broken(lease, longest, why))
            last = lease
            latest = max(latest, lease, key=lambda one: one.asked)
            longest = max(longest, lease, key=lambda one: one.ended)
    return wrong


def main(path: str) -> int:
    """Print what is broken in a history, and return the exit status."""
    with open(path, encoding="utf-8") as lines:
        events = [Event(**json.loads(line)) for line in lines]
    found, wrong = observed_leases(one for one in events if one.what not in ("own", "error"))
    wrong += map(str, broken_order(found))
    sys.stdout.write("\n".join([*wrong, f"{len(found)} grants, {len(wrong)} of them broken", ""]))
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
