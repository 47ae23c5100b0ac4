"""Check the history of a campaign without this package: `check_history.py HISTORY.jsonl`.

A line is an event of a thread or task: "worker", "what", "at", "resource", "fence", "until". Times
are seconds of one clock of the machine. A request ("acquire", "release") is written before it is
sent, an answer ("granted", "renewed", "lost") after it has come; `until` is when the lease ends.
Found are: two leases of one resource at a time, and a fence that is not higher than those before.
The exit status is 1 if one was found, or if the history has no grant.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Leases = dict[str, list[list[Any]]]


def leases_of(lines: Iterable[str]) -> Leases:
    """Return the leases of each resource as [asked, granted, end, fence, worker]."""
    asked: dict[str, float] = {}
    held: dict[str, list[Any]] = {}
    leases: Leases = defaultdict(list)
    for line in lines:
        event = json.loads(line)
        worker, what, at = event["worker"], event["what"], event["at"]
        lease = held.get(worker)
        if what == "acquire":
            asked[worker] = at
        elif what == "granted":
            held[worker] = [asked[worker], at, event["until"], event["fence"], worker]
            leases[event["resource"]].append(held[worker])
        elif what == "renewed" and lease:
            lease[2] = event["until"]
        elif what in ("lost", "release") and lease:
            lease[2] = min(lease[2], at)
            del held[worker]
    return leases


def broken(leases: Leases) -> Iterator[str]:
    """Yield what a lock with fences must not do."""
    for resource, found in leases.items():
        found.sort(key=lambda lease: lease[3])
        end = float("-inf")
        last: list[Any] = []
        for lease in found:
            _, granted, until, fence, worker = lease
            if last and fence == last[3]:
                yield f"{resource}: fence {fence} was granted to {last[4]} and to {worker}"
            if granted < end:
                yield f"{resource}: granted to {worker} {end - granted:.6f} s before a lease ended"
            end, last = max(end, until), lease


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_history.py HISTORY.jsonl")
    with open(sys.argv[1], encoding="utf-8") as history:
        every = leases_of(history)
    wrong = list(broken(every))
    grants = sum(map(len, every.values()))
    sys.stdout.write("\n".join([*wrong, f"{grants} grants, {len(wrong)} of them broken", ""]))
    sys.exit(bool(wrong) or not grants)
