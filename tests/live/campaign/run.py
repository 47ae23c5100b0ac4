"""One campaign: faults one after the other, until the time is over."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from redlock_django import locks
from redlock_django.testing.processes import ProcessGroup
from redlock_django.wire.clock import clock
from tests.live.campaign.faults import LASTS, Kind, Stage, kinds_of
from tests.live.campaign.history import Event
from tests.live.campaign.processes import Workers
from tests.live.campaign.report import HEALTHY, Window, broken_promises
from tests.live.campaign.stores import STORES, Store
from tests.live.campaign.worker import TTL
from tests.live.clocks import build
from tests.live.network import FaultUnavailable
from tests.programs import set_up

WORKERS = 3
LINGERS = 8.0  # seconds after the last release until no lock and no queue may be left
SETTLE = 1.0  # seconds in which links come back that no thread was waiting for
START = 60.0  # seconds within which the workers must have started
WELL = 10.0  # seconds within which every thread must be granted a lock after a fault


def print_line(text: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Campaign:
    """The windows and the broken promises of a campaign, and its store and workers."""

    def __init__(self, store: Store, workers: Workers, only: str) -> None:
        self.store, self.workers = store, workers
        self.kinds = [kind for kind in kinds_of(type(store)) if only in kind.name]
        self.windows: list[Window] = []
        self.broken: list[str] = []
        self.impossible: dict[str, str] = {}  # by kind: why this machine cannot cause it

    def begin(self) -> None:
        """Make the store ready, start the workers, and measure them without a fault."""
        set_up(json.dumps(self.store.settings))
        self.store.prepare()
        locks.close()
        for _ in range(WORKERS):
            self.workers.start()
        self._wait_until_well("the beginning", START)

    def healthy(self) -> None:
        """Measure for as long as a fault lasts, without any."""
        began = clock()
        time.sleep(LASTS)
        self.windows.append(Window(HEALTHY, began, clock()))

    def strike(self, kind: Kind) -> None:
        """Cause one fault, end it, and wait until all is well again."""
        with ExitStack() as after:
            try:
                kind.begin(Stage(self.store, self.workers, after))
            except FaultUnavailable as why:
                self.impossible[kind.name] = str(why)
                return
            began, clocks = clock(), self.store.clocks()
            time.sleep(LASTS)
            ended = clock()
        back = self._wait_until_well(kind.name)
        self.windows.append(Window(kind.name, began, ended, back, clocks))
        time.sleep(SETTLE)

    def _wait_until_well(self, when: str, within: float = WELL) -> float:
        """Wait until every thread has been granted a lock; return the seconds."""
        began = clock()
        while clock() < began + within:
            time.sleep(0.05)
            if all(_is_well(worker.events, began) for worker in self.workers.running):
                return clock() - began
        self.broken.append(f"some threads were granted no lock within {within:g} s after: {when}")
        return clock() - began

    @property
    def foreign(self) -> frozenset[str]:
        """The names of the workers of other deployments."""
        return frozenset(worker.name for worker in self.workers.started if worker.foreign)

    @property
    def events(self) -> list[Event]:
        """The events of all workers of the campaign's own deployment."""
        return [e for w in self.workers.started if not w.foreign for e in w.events]

    def end(self) -> None:
        """End all workers, and check that they leave nothing behind."""
        for worker in list(self.workers.running):
            self.workers.end(worker)
        self.broken += self.workers.broken
        time.sleep(LINGERS)
        self.broken += self.store.left()
        if not any(event.what == "granted" for event in self.workers.events):
            self.broken.append("no lock that the workers share was granted: nothing was checked")
        self.broken += broken_promises(self.workers.events, self.foreign, self.windows)


def _is_well(events: Sequence[Event], since: float) -> bool:
    """Return whether both measuring threads of a worker were granted a lock since then."""
    granted = set()
    for event in reversed(events):
        if event.at < since:
            break
        if event.what == "own" and event.entry == "granted":
            granted.add(event.worker)
    return len(granted) == 2


def run(store: str, seconds: float, seed: int, only: str = "") -> Campaign:
    """Run a campaign of about so many seconds, every kind equally often, and return it.

    `only` is in the names of the kinds.
    """
    rng = random.Random(seed)
    with ExitStack() as stack:
        shim = build(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        struck = stack.enter_context(STORES[store](shim))
        processes = stack.enter_context(ProcessGroup("redlock-campaign-"))
        campaign = Campaign(struck, Workers(struck, shim, processes), only)
        campaign.begin()
        until, due = clock() + seconds, list[Kind]()
        while clock() < until:
            if not due:
                campaign.healthy()
                due = rng.sample(campaign.kinds, len(campaign.kinds))
            kind = due.pop()
            campaign.strike(kind)
            if campaign.windows[-1].kind == kind.name:
                last = campaign.windows[-1]
                print_line(f"{clock() - until + seconds:6.0f} s: {last.kind}, {last.back:.1f} s")
        campaign.end()
    return campaign


assert WELL > 4 * TTL, "masters that restarted empty are trusted after RESTART_DELAY"
