"""The result of a campaign: broken promises, and the availability during each kind of fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.live.campaign.history import Broken, Event, broken_order, observed_leases

HEALTHY = "healthy"
LINGERING = 5.0  # seconds after a fault in which its effects may be seen
COLUMNS = ("fault", "times", "tries", "granted", "median", "p99", "longest gap", "back after")


class Window(NamedTuple):
    """One fault: its kind, from when until when it lasted, and seconds until all was well.

    `clocks` are the seconds by which the masters' clocks were shifted meanwhile.
    """

    kind: str
    began: float
    ended: float
    back: float = 0.0
    clocks: tuple[float, ...] = ()


class Row(NamedTuple):
    """The tries for uncontended locks that began while faults of one kind lasted.

    Latencies and gaps are in seconds; a gap is a time in which a thread was granted no lock.
    """

    kind: str
    times: int
    tries: int
    granted: float
    median: float
    p99: float
    gap: float
    back: float

    def cells(self) -> list[str]:
        """Return the row as it is printed."""
        return [
            self.kind, str(self.times), f"{self.tries:,}", f"{100 * self.granted:.1f} %",
            f"{1000 * self.median:.1f} ms", f"{1000 * self.p99:.0f} ms", f"{self.gap:.2f} s",
            f"{self.back:.1f} s",
        ]  # fmt: skip


def availability(
    windows: Sequence[Window], events: Sequence[Event], kinds: Sequence[str]
) -> list[Row]:
    """Return a row for the healthy windows, and one for each of these kinds that was caused."""
    own = [event for event in events if event.what == "own"]
    found: dict[str, list[Window]] = defaultdict(list)
    for window in windows:
        found[window.kind].append(window)
    return [_row(kind, found[kind], own) for kind in (HEALTHY, *kinds) if kind in found]


def _row(kind: str, windows: Sequence[Window], own: Sequence[Event]) -> Row:
    inside = [
        [event for event in own if window.began <= event.at - event.until < window.ended]
        for window in windows
    ]
    tries = [event for events in inside for event in events]
    latencies = sorted(event.until for event in tries if event.entry == "granted")
    gaps = [_gap(window, events) for window, events in zip(windows, inside, strict=True)]
    return Row(
        kind,
        len(windows),
        len(tries),
        len(latencies) / max(len(tries), 1),
        latencies[len(latencies) // 2] if latencies else 0.0,
        latencies[int(len(latencies) * 0.99)] if latencies else 0.0,
        max(gaps),
        max(window.back for window in windows),
    )


def _gap(window: Window, events: Sequence[Event]) -> float:
    granted = [event.at for event in events if event.entry == "granted"]
    moments = [window.began, *sorted(granted), window.ended]
    return max(later - earlier for earlier, later in pairwise(moments))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def broken_promises(
    events: Sequence[Event], foreign: frozenset[str], windows: Sequence[Window] = ()
) -> list[str]:
    """Return an error for each overlap, fence that did not grow, and unexpected exception.

    Errors about grants name what they are attributed by: both leases, and the faults before them.
    """
    history = [event for event in events if event.what not in ("own", "error")]
    found, wrong = observed_leases(history)
    wrong += [f"{one} ({'; '.join(_circumstances(one, windows))})" for one in broken_order(found)]
    for event in events:
        if event.what == "error" or event.entry.startswith("error: "):
            wrong.append(f"{event.worker}, {event.resource}: {event.entry}")
        granted = event.what == "granted" or event.entry == "granted"
        if granted and event.worker.partition("/")[0] in foreign:
            wrong.append(f"{event.worker} of another deployment was granted {event.resource}")
    return wrong


def _circumstances(broken: Broken, windows: Sequence[Window]) -> Iterator[str]:
    """Yield what a wrong grant may come from; times are seconds after that grant."""
    now = broken.lease.granted
    for name, lease in (("this lease", broken.lease), ("the other", broken.earlier)):
        yield (
            f"{name}: asked {lease.asked - now:+.3f}, granted {lease.granted - now:+.3f}, until "
            f"{lease.until - now:+.3f}, released {lease.released - now:+.3f}"
        )
    for window in windows:
        if window.kind != HEALTHY and window.began <= now <= window.ended + LINGERING:
            shifted = f", clocks {window.clocks}" if any(window.clocks) else ""
            from_, to = window.began - now, window.ended - now
            yield f"{window.kind}, {from_:+.2f} to {to:+.2f}{shifted}"
