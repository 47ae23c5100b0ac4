"""Contention: what locks waited for or were refused, counted in memory and written to a table.

An alias with RECORD_CONTENTION is observed (`locking.events.Observer`). Once a minute a thread of
the process writes one row about all locks of the alias, the difference of its counters, and at most
2 x MOST rows about single resources. If that fails, the counts of that minute are dropped.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

from django.db import connections

from redlock_django.conf.settings import AliasSettings
from redlock_django.engine.errors import NotAcquired, StoreUnavailable
from redlock_django.locking import events
from redlock_django.locking.counters import Counts, counters
from redlock_django.locking.thread_state import reset_with_threads
from redlock_django.models import ContentionCount
from redlock_django.operate.contention_report import NUMBERS, this_minute

logger = logging.getLogger("redlock_django")

INTERVAL = 60.0  # seconds between two writes of a process
KEPT = 25 * 60  # minutes after which rows are deleted
PURGE_EVERY = 60  # minutes between two deletions by one process
TRACKED = 1000  # resources of an alias that are counted in memory at the same time
MOST = 10  # the most contended, and the longest held, resources that are written
LONG = 1.0  # seconds; a resource that was held for less and not waited for is not written


@dataclass(slots=True)
class ResourceCounts:
    """The numbers of one resource since the last write."""

    refused: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    released: int = 0
    held_seconds: float = 0.0

    @property
    def contended(self) -> int:
        """How many callers found the resource held."""
        return self.refused + self.waited


class ContentionRecorder:
    """Counts the contention of this process, and writes it to the table of ContentionCount."""

    def __init__(self) -> None:
        self._aliases: set[str] = set()
        self._purged = 0
        self._failed = False
        self._reset()

    def _reset(self) -> None:
        # Reentrant: a signal handler may release a lock in the middle of a count.
        self._mutex = threading.RLock()
        self._writing = threading.Lock()
        self._resources: dict[str, dict[str, ResourceCounts]] = defaultdict(dict)
        self._written: dict[str, Counts] = {}
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def follow(self, settings: AliasSettings) -> None:
        """Record an alias if its settings have RECORD_CONTENTION, else stop recording it."""
        (self._aliases.add if settings.record_contention else self._aliases.discard)(settings.alias)
        if self in events.observers:
            if not self._aliases:
                events.observers.remove(self)
                self._stopped.set()
                self._thread = None
        elif self._aliases:
            events.observers.append(self)

    # The observer.

    def acquired(self, held_lease: events.ReportedLease) -> None:
        alias, lease = held_lease.backend.alias, held_lease.lease
        if alias not in self._aliases:
            return
        if lease.waited:
            with self._mutex:
                for name in lease.names:
                    numbers = self._numbers(alias, name)
                    numbers.waited += 1
                    numbers.waited_seconds += lease.waited
        self._ensure_running()

    def refused(self, error: NotAcquired, using: str, resources: tuple[str, ...]) -> None:
        if using not in self._aliases:
            return
        if not isinstance(error, StoreUnavailable):
            refused = [name for name in resources if name in error.resources]
            with self._mutex:
                for name in refused:  # without a condition: see docs/explanation/interrupts.md
                    numbers = self._numbers(using, name)
                    numbers.refused += 1
                    numbers.waited += error.waited > 0
                    numbers.waited_seconds += error.waited
        self._ensure_running()

    def released(self, held_lease: events.ReportedLease, held: float, freed: bool | None) -> None:
        alias = held_lease.backend.alias
        if alias in self._aliases:
            with self._mutex:
                for name in held_lease.lease.names:
                    numbers = self._numbers(alias, name)
                    numbers.released += 1
                    numbers.held_seconds += held

    def lost(self, held_lease: events.ReportedLease, held: float, reason: str) -> None:
        self.released(held_lease, held, None)

    def _numbers(self, alias: str, name: str) -> ResourceCounts:
        counted = self._resources[alias]
        numbers = counted.get(name)
        if numbers is None:
            if len(counted) >= TRACKED:
                self._resources[alias] = counted = _most(counted, TRACKED // 4)
            numbers = counted[name] = ResourceCounts()
        return numbers

    # The thread.

    def _ensure_running(self) -> None:
        if self._thread is None:
            with self._mutex, suppress(RuntimeError):  # no thread can be started at the end
                if self._thread is None:
                    self._stopped = threading.Event()
                    thread = threading.Thread(
                        target=self._run,
                        args=(self._stopped,),
                        name="redlock-contention",
                        daemon=True,
                    )
                    thread.start()
                    self._thread = thread

    def _run(self, stopped: threading.Event) -> None:
        # Not all processes of a host write at the same moment.
        spread = 0.9 + os.getpid() % 100 / 500
        while not stopped.wait(INTERVAL * spread):
            self.write()
            with suppress(Exception):
                connections.close_all()  # those of this thread

    def write(self) -> None:
        """Write the counts since the last write, and delete old rows once an hour. Never raises."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            minute = this_minute()
            if not (rows := self._rows(minute)):
                return
            ContentionCount.objects.bulk_create(rows)
            if minute >= self._purged + PURGE_EVERY:
                self._purged = minute
                ContentionCount.objects.filter(minute__lt=minute - KEPT).delete()
            self._failed = False
        except Exception as error:  # noqa: BLE001 - of any database; locks go on
            if not self._failed:
                logger.warning("redlock: the contention of locks could not be written: %r", error)
            self._failed = True
        finally:
            self._writing.release()

    def _rows(self, minute: int) -> list[ContentionCount]:
        """Return the rows to write, and begin to count again."""
        rows = []
        with self._mutex:
            resources, self._resources = self._resources, defaultdict(dict)
        for alias in sorted(self._aliases):
            now = counters[alias]
            before = self._written.get(alias, Counts())
            self._written[alias] = now
            total = ContentionCount(minute=minute, using=alias, resource="")
            for name in NUMBERS:
                setattr(total, name, getattr(now, name) - getattr(before, name))
            if any(getattr(total, name) for name in NUMBERS):
                rows.append(total)
            for name, numbers in _most(resources[alias], MOST).items():
                if numbers.contended or numbers.held_seconds >= LONG:
                    row = ContentionCount(minute=minute, using=alias, resource=name)
                    for number in ResourceCounts.__slots__:
                        setattr(row, number, getattr(numbers, number))
                    rows.append(row)
        return rows


def _most(counted: dict[str, ResourceCounts], most: int) -> dict[str, ResourceCounts]:
    """Return the `most` resources that were most contended, and as many that were held longest."""
    contended = [item for item in counted.items() if item[1].contended]
    contended.sort(key=lambda item: -item[1].contended)
    held = sorted(counted.items(), key=lambda item: -item[1].held_seconds)
    return dict(contended[:most] + held[:most])


recorder = ContentionRecorder()
atexit.register(recorder.write)  # the last counts, and all of a process that lives for seconds
reset_with_threads(recorder._reset)
