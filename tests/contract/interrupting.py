"""Interrupt the use of a lock at every line of the database store."""

from __future__ import annotations

from collections.abc import Iterator

from redlock_django import lock
from tests.live.test_locking_interrupts import Lines


def after_each_interrupt(
    what: str, limit: int, *, least: int
) -> Iterator[tuple[tuple[str, int], int]]:
    """Interrupt "acquire" or "release" at one line after the other; yield each place afterwards.

    There must be more than `least` places.
    """
    lines = Lines()

    def strike(wanted: tuple[tuple[str, int], int] | None = None) -> None:
        order = lock("order:1", "order:2") if limit == 1 else lock("order:1", limit=limit)
        lines.strike(order, what, wanted)

    strike()
    places = [(place, n + 1) for place in lines.seen for n in range(lines.seen[place])]
    ours = [one for one in places if "/backends/database" in one[0][0]]
    assert len(ours) > least
    for place in ours:
        strike(place)
        yield place
