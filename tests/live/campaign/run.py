"""One campaign: faults one after the other, until the time is over."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

from django.core.management import call_command
from django.test import override_settings

from redlock_django.testing.processes import ProcessGroup
from redlock_django.wire.clock import clock
from tests.live.campaign.faults import LASTS, Kind, Stage
from tests.live.campaign.history import Event
from tests.live.campaign.machines import Machine, machines
from tests.live.campaign.processes import Workers
from tests.live.campaign.report import HEALTHY, Window, broken_promises
from tests.live.campaign.worker import TTL, lock_settings
from tests.live.clocks import build
from tests.live.left_over import PATTERNS
from tests.live.network import FaultUnavailable

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
    """The windows and the broken promises of a campaign, and its masters and workers."""

    def __init__(self, masters: Sequence[Machine], spare: Sequence[Machine], workers: Workers):
        self.masters, self.spare, self.workers = masters, spare, workers
        self.windows: list[Window] = []
        self.broken: list[str] = []
        self.impossible: dict[str, str] = {}  # by kind: why this machine cannot cause it

    def begin(self) -> None:
        """Trust the fresh masters, start the workers, and measure them without a fault."""
        with override_settings(REDLOCK=lock_settings([m.url for m in self.masters])):
            call_command("redlock_init", stdout=StringIO())
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
                kind.begin(Stage(self.masters, self.spare, self.workers, after))
            except FaultUnavailable as why:
                self.impossible[kind.name] = str(why)
                return
            began = clock()
            clocks = tuple(machine.clock.wall for machine in self.masters)
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
        for machine in self.masters:
            with machine.client() as client:
                for pattern in PATTERNS:
                    for key in client.scan_iter(match=pattern):
                        self.broken.append(f"{key.decode()} is left on {machine.url}")
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


def run(seconds: float, seed: int, kinds: Sequence[Kind]) -> Campaign:
    """Run a campaign of about so many seconds, every kind equally often, and return it."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        shim = build(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        servers = stack.enter_context(machines(7, shim))
        processes = stack.enter_context(ProcessGroup("redlock-campaign-"))
        campaign = Campaign(servers[:5], servers[5:], Workers(servers[:5], shim, processes))
        campaign.begin()
        until, due = clock() + seconds, list[Kind]()
        while clock() < until:
            if not due:
                campaign.healthy()
                due = rng.sample(kinds, len(kinds))
            kind = due.pop()
            campaign.strike(kind)
            if campaign.windows[-1].kind == kind.name:
                last = campaign.windows[-1]
                print_line(f"{clock() - until + seconds:6.0f} s: {last.kind}, {last.back:.1f} s")
        campaign.end()
    return campaign


assert WELL > 4 * TTL, "masters that restarted empty are trusted after RESTART_DELAY"
