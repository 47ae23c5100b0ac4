"""Interrupt the use of a lock at every line of a store."""

from __future__ import annotations

from collections.abc import Iterator

from redlock_django import lock
from tests.live.test_locking_interrupts import Lines


def after_each_interrupt(
    what: str, limit: int, *, store: str = "database", least: int, every: bool = True
) -> Iterator[tuple[tuple[str, int], int]]:
    """Interrupt a method of a lock at one line of its store after the other; yield each place.

    Each time that a line is reached is a place, or if not `every`, the first and the last. There
    must be more than `least` places.
    """
    lines = Lines()

    def strike(wanted: tuple[tuple[str, int], int] | None = None) -> None:
        order = lock("order:1", "order:2") if limit == 1 else lock("order:1", limit=limit)
        lines.strike(order, what, wanted)

    strike()
    times = {
        place: range(1, last + 1) if every else {1, last} for place, last in lines.seen.items()
    }
    places = [(place, n) for place in times for n in sorted(times[place])]
    ours = [one for one in places if f"/backends/{store}" in one[0][0]]
    assert len(ours) > least
    for place in ours:
        strike(place)
        yield place
