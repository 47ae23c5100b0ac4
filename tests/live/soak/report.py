"""The result of a soak: the broken promises, and the numbers of steps and faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.live.soak.history import (
    Event,
    Write,
    broken_fences,
    broken_order,
    late_holders,
    lost_updates,
    observed_leases,
)


@dataclass
class Report:
    """A run: its history, the writes to the registers, and the sum of their values at the end."""

    fenced: bool
    seconds: float
    faults: Counter[str]
    events: list[Event]
    writes: list[Write]
    total: int

    def __post_init__(self) -> None:
        self.leases, self.impossible = observed_leases(self.events)
        self.lost = lost_updates(self.writes, self.events)
        self.out_of_turn = broken_fences(self.writes, self.leases)

    def broken(self) -> list[str]:
        """Return an error for each broken promise; without fencing, also if no update was lost."""
        wrong = [*self.impossible, *map(str, broken_order(self.leases))]
        if self.fenced:
            wrong += self.out_of_turn
            wrong += [f"lost update: {entry}" for entry in self.lost]
        elif not self.lost:
            wrong.append("no update was lost without fencing: this soak could not have found any")
        appended = {write.entry for write in self.writes} | {
            event.entry for event in self.events if event.what == "wrote"
        }
        kept = len(appended - {""}) - len(self.lost)
        if kept != self.total:
            wrong.append(f"{kept} entries are kept, and the registers count {self.total}")
        return wrong

    def rows(self) -> dict[str, str]:
        """Return the numbers with their labels."""
        counts = Counter(event.what for event in self.events)
        # A refused claim has no entry.
        late, met = late_holders(self.leases)
        unknown = counts["acquire"] - counts["granted"] - counts["refused"]
        return {
            "seconds": f"{self.seconds:.0f}",
            "grants": f"{len(self.leases):,}",
            "refusals": f"{counts['refused']:,}",
            "acquires of unknown outcome": f"{unknown:,}",
            "writes": f"{sum(bool(write.entry) for write in self.writes):,}",
            "faults": f"{sum(self.faults.values()):,}",
            **{f"— {kind}": f"{times:,}" for kind, times in sorted(self.faults.items())},
            "holders that continued after their deadline": f"{late:,}",
            "— while a newer one held or had held": f"{met:,}",
            "leases that overlapped before a deadline": f"{len(broken_order(self.leases)):,}",
            "late writes and claims refused": f"{counts['rejected']:,}",
            "writes accepted after a higher fence": f"{len(self.out_of_turn):,}",
            "lost updates": f"{len(self.lost):,}",
        }
