"""What a soak has shown: which promises were broken, and how much was tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.live.soak.history import (
    Event,
    Write,
    broken_fences,
    broken_order,
    holds,
    lost_updates,
    overslept,
)


@dataclass
class Report:
    """A run: its history, what the registers saw, and the sum of their values at the end."""

    fenced: bool
    seconds: float
    faults: Counter[str]
    events: list[Event]
    writes: list[Write]
    total: int

    def __post_init__(self) -> None:
        self.holds, self.impossible = holds(self.events)
        self.lost = lost_updates(self.writes, self.events)
        self.out_of_turn = broken_fences(self.writes, self.holds)

    def broken(self) -> list[str]:
        """Every promise that was broken; without fencing: also that the soak has no teeth."""
        wrong = self.impossible + broken_order(self.holds)
        if self.fenced:
            wrong += self.out_of_turn
            wrong += [f"lost update: {entry}" for entry in self.lost]
        elif not self.lost:
            wrong.append("no update was lost without fencing: this soak would not tell")
        appended = {write.entry for write in self.writes} | {
            event.entry for event in self.events if event.what == "wrote"
        }
        kept = len(appended - {""}) - len(self.lost)
        if kept != self.total:
            wrong.append(f"{kept} entries are kept, and the registers say {self.total}")
        return wrong

    def rows(self) -> dict[str, str]:
        """The numbers, by what they count."""
        said = Counter(event.what for event in self.events)
        # A claim that is refused has no entry.
        late, met = overslept(self.holds)
        unknown = said["acquire"] - said["granted"] - said["refused"]
        return {
            "seconds": f"{self.seconds:.0f}",
            "grants": f"{len(self.holds):,}",
            "refusals": f"{said['refused']:,}",
            "acquires of unknown outcome": f"{unknown:,}",
            "writes": f"{sum(bool(write.entry) for write in self.writes):,}",
            "faults": f"{sum(self.faults.values()):,}",
            **{f"— {kind}": f"{times:,}" for kind, times in sorted(self.faults.items())},
            "holders that went on beyond their deadline": f"{late:,}",
            "— while a newer one held or had held": f"{met:,}",
            "leases that overlapped before a deadline": f"{len(broken_order(self.holds)):,}",
            "late writes and claims refused": f"{said['rejected']:,}",
            "writes accepted after a higher fence": f"{len(self.out_of_turn):,}",
            "lost updates": f"{len(self.lost):,}",
        }
