"""Counters of this process: the outcomes of locks and of repeated requests.

`counters["default"]` returns a snapshot of one alias. Counters start at 0 when the process starts
and only grow; a forked child starts at 0. They count the actions of this process, not the locks on
the masters: add them up over all processes.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from redlock_django.conf.settings import load

DESCRIPTIONS = {
    "acquired": "Locks acquired",
    "refused": "Locks refused because another holder had them",
    "unavailable": "Locks not acquired because too few masters could be reached",
    "waited": "Locks that needed more than one attempt, whether acquired or refused in the end",
    "waited_seconds": "Seconds from the first to the last attempt of those locks",
    "released": "Locks released while they were still held",
    "held_seconds": "Seconds that locks were held until they were released or lost",
    "lost": "Locks lost before they were released",
    "released_late": "Locks that were already lost when their holder released them",
    "forced": "Locks of other holders that this process released by force",
    "replayed": "Requests answered from an idempotency record",
    "conflicted": "Requests refused because the first one with their key was still running",
    "mismatched": "Requests refused because their key was used for a different one",
    "uncertain": "Requests refused because nobody knows what became of the first with their key",
}
"""A description of each field of `Counts`, for metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterCounts:
    """The condition of one master as this process has seen it.

    `errors` counts lost links and failed attempts to connect, not reconnects that worked at once.
    `down` is True if the master is unreachable now, as far as this process knows.
    """

    errors: int = 0
    down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot of the counters of one alias; `DESCRIPTIONS` describes each field.

    `masters` maps the names of the masters, in the order of the settings, to their counts. It is
    empty until the alias is used for the first time.
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
    """The counters of all aliases that this process has used."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Reentrant: a finalizer that runs in the middle of a count may release a lock.
        self._mutex = threading.RLock()
        self._numbers: defaultdict[str, defaultdict[str, float]] = defaultdict(_zeros)
        self._masters: dict[str, dict[str, MasterCounts]] = {}

    def __getitem__(self, alias: str) -> Counts:
        """Return a snapshot of an alias; raise InvalidRedlock if there is no such alias."""
        with self._mutex:
            if alias in self._numbers:
                numbers, masters = dict(self._numbers[alias]), dict(self._masters.get(alias, {}))
                return Counts(**numbers, masters=masters)  # type: ignore[arg-type]
        load(alias)
        return Counts()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))

    def count(self, alias: str, **amounts: float) -> None:
        """Add amounts to the counters of an alias, by their names in `Counts`."""
        with self._mutex:
            numbers = self._numbers[alias]
            for name, amount in amounts.items():
                numbers[name] += amount

    def set_masters(self, alias: str, masters: Iterable[str]) -> None:
        """Set the names of the masters of an alias; known masters keep their counts."""
        with self._mutex:
            _ = self._numbers[alias]  # creates the entry, so that __iter__ yields the alias
            known = self._masters.get(alias, {})
            self._masters[alias] = {name: known.get(name, MasterCounts()) for name in masters}

    def set_master_state(self, alias: str, name: str, *, up: bool) -> bool:
        """Record that a master is up or failed; return whether its state changed."""
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
    os.register_at_fork(after_in_child=counters._reset)
