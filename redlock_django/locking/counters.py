"""What this process has counted: what became of locks, and of requests that were sent again.

`counters["default"]` is a snapshot for one alias. Numbers only grow, from 0 at the start of
the process; a forked child begins at 0. They are what this process did, not what the
masters hold: add them up over all processes.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from redlock_django.conf.settings import load

DESCRIPTIONS = {
    "acquired": "Locks taken",
    "refused": "Locks refused because somebody else held them",
    "unavailable": "Locks not taken because too few masters could be asked",
    "waited": "Locks that were not decided at the first try, whether taken or refused then",
    "waited_seconds": "Seconds that passed until the last try of those",
    "released": "Locks given back while they were still ours",
    "held_seconds": "Seconds that locks were held until they were given back or lost",
    "lost": "Locks that were lost before they were given back",
    "released_late": "Locks whose holder only came to give them back when they were lost",
    "forced": "Locks of others that this process freed by force",
    "replayed": "Requests answered from an idempotency record",
    "conflicted": "Requests refused because the first one with their key was still running",
    "mismatched": "Requests refused because their key was used for a different one",
    "uncertain": "Requests refused because nobody knows what became of the first with their key",
}
"""What each number of `Counts` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterCounts:
    """How a master was for this process.

    `errors` counts links that were lost and attempts to connect that failed, not quiet
    reconnects; `down` is whether it is unreachable now, as far as this process knows.
    """

    errors: int = 0
    down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot of the numbers of one alias; `DESCRIPTIONS` says what each of them is.

    `masters` has the masters by name, in the order of the settings, once the alias was used.
    """

    acquired: int = 0
    refused: int = 0
    unavailable: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    released: int = 0
    held_seconds: float = 0.0
    lost: int = 0
    released_late: int = 0
    forced: int = 0
    replayed: int = 0
    conflicted: int = 0
    mismatched: int = 0
    uncertain: int = 0
    masters: Mapping[str, MasterCounts] = field(default_factory=dict)


class Counters:
    """The numbers of all aliases that this process has used."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        # Reentrant: a collected object may give its lock back in the middle of a count.
        self._mutex = threading.RLock()
        self._numbers: defaultdict[str, defaultdict[str, float]] = defaultdict(_zeros)
        self._masters: dict[str, dict[str, MasterCounts]] = {}

    def __getitem__(self, alias: str) -> Counts:
        """Give the numbers of an alias as they are now; raises InvalidRedlock for no alias."""
        with self._mutex:
            if alias in self._numbers:
                numbers, masters = dict(self._numbers[alias]), dict(self._masters.get(alias, {}))
                return Counts(**numbers, masters=masters)  # type: ignore[arg-type]
        load(alias)
        return Counts()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))

    def count(self, alias: str, **amounts: float) -> None:
        """Add to numbers of an alias, by their names in `Counts`."""
        with self._mutex:
            numbers = self._numbers[alias]
            for name, amount in amounts.items():
                numbers[name] += amount

    def know(self, alias: str, masters: Iterable[str]) -> None:
        """Say which masters an alias has now."""
        with self._mutex:
            _ = self._numbers[alias]  # there from now on
            known = self._masters.get(alias, {})
            self._masters[alias] = {name: known.get(name, MasterCounts()) for name in masters}

    def master(self, alias: str, name: str, *, up: bool) -> bool:
        """Note that a master came or failed; give whether that is news to this process."""
        with self._mutex:
            masters = self._masters.setdefault(alias, {})
            before = masters.get(name, MasterCounts())
            errors = before.errors + (not up)
            masters[name] = MasterCounts(errors=errors, down=not up)
            return before.down is up


def _zeros() -> defaultdict[str, float]:
    return defaultdict(int)


counters = Counters()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=counters._forget)
