"""Counters of this process: the outcomes of its locks, and those that extensions add.

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
from typing import Any, NamedTuple

from redlock_django.locking.hooks import load_extensions


class CounterType(NamedTuple):
    """The description of a counter for metrics, and its unit as OpenTelemetry writes it."""

    description: str
    unit: str = "{lock}"


_types = {
    "acquired": CounterType("Locks acquired"),
    "refused": CounterType("Locks refused because another holder had them"),
    "unavailable": CounterType("Locks not acquired because too few servers could be reached"),
    "waited": CounterType(
        "Locks that were waited for between attempts, whether acquired or refused in the end"
    ),
    "waited_seconds": CounterType("Seconds from the first to the last attempt of those locks", "s"),
    "released": CounterType("Locks released while they were still held"),
    "held_seconds": CounterType("Seconds that locks were held until released or lost", "s"),
    "lost": CounterType("Locks lost before they were released"),
    "released_late": CounterType("Locks that were already lost when their holder released them"),
    "forced": CounterType("Locks of other holders that this process released by force"),
}


def register_counters(types: Mapping[str, CounterType]) -> None:
    """Add the counters of an extension; they become attributes of `Counts`."""
    _types.update(types)


def counter_types() -> dict[str, CounterType]:
    """Return every counter by name, those of extensions included."""
    load_extensions()
    return dict(_types)


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
    """A snapshot of the counters of one alias; `counter_types` describes them.

    A counter of an extension, such as `replayed`, is an attribute too. `masters` maps the names of
    the masters, in the order of the settings, to their counts. It is empty until the alias is
    used for the first time.
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
    masters: Mapping[str, MasterCounts] = field(default_factory=dict)
    of_extensions: Mapping[str, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> int:
        if name not in self.__slots__ and name in counter_types():
            return self.of_extensions.get(name, 0)
        raise AttributeError(f"there is no counter {name!r}")


_FIELDS = frozenset(Counts.__dataclass_fields__)


class Counters:
    """The counters of all aliases that this process has used."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Reentrant: a finalizer that runs meanwhile may notice the loss of a lock. See
        # docs/explanation/interrupts.md.
        self._mutex = threading.RLock()
        self._numbers = _Numbers()
        self._masters: dict[str, dict[str, MasterCounts]] = {}

    def __getitem__(self, alias: str) -> Counts:
        """Return a snapshot of an alias; raise InvalidRedlock if there is no such alias."""
        with self._mutex:
            if alias in self._numbers:
                numbers: dict[str, Any] = dict(self._numbers[alias])
                masters = dict(self._masters.get(alias, {}))
                added = {name: numbers.pop(name) for name in numbers.keys() - _FIELDS}
                return Counts(**numbers, masters=masters, of_extensions=added)
        from redlock_django.conf.settings import load  # not above: counting needs no settings

        load(alias)
        return Counts()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))

    # None of these takes a mutex, or calls anything: see docs/explanation/interrupts.md.

    def count(self, alias: str, name: str, amount: float = 1) -> None:
        """Add an amount to a counter of an alias, by its name in `Counts`."""
        self._numbers[alias][name] += amount

    def count_end(self, alias: str, name: str, held: float) -> None:
        """Count a lease that ended in this way, and the seconds for which it was held."""
        numbers = self._numbers[alias]
        numbers[name] += 1
        numbers["held_seconds"] += held

    def count_wait(self, alias: str, waited: float) -> None:
        """Count a lock that was waited for, and the seconds until its last attempt."""
        numbers = self._numbers[alias]
        numbers["waited"] += 1
        numbers["waited_seconds"] += waited

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


class _Numbers(dict[str, defaultdict[str, float]]):
    """The numbers of each alias by name; an alias or a name is added when it is first read."""

    def __missing__(self, alias: str) -> defaultdict[str, float]:
        return self.setdefault(alias, defaultdict(int))  # another thread may be quicker


counters = Counters()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=counters._reset)
