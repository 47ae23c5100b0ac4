"""One soak from its beginning to its report."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.test import override_settings

from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.clock import clock
from tests.live.soak import ledger
from tests.live.soak.crew import PATIENCE, Crew, crew
from tests.live.soak.faults import Faults
from tests.live.soak.report import Report
from tests.live.soak.worker import Task, lock_settings

SHOWN_EVERY = 10.0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def soak(
    masters: Sequence[LocalMaster],
    database: dict[str, Any],
    *,
    seconds: float,
    fenced: bool,
    seed: int,
    workers: int = 6,
    registers: int = 3,
    every: float = 2.0,
    forgetful: bool = False,
) -> tuple[Report, list[str]]:
    """Soak; what it has shown, and what was broken.

    The masters must be up and empty. The seed draws the faults; when they hit, time decides.
    """
    urls = [master.url for master in masters]
    names = [f"register:{number}" for number in range(registers)]
    ledger.make(database, names)
    with override_settings(REDLOCK=lock_settings(urls, forgetful)):
        call_command("redlock_init", stdout=StringIO())
    task = Task(urls, database, names, str(seed), fenced, forgetful=forgetful)
    with crew(task) as members:
        for _ in range(workers):
            members.hire()
        for member in members.working:
            member.wait_for("granted")
        faults = Faults(members, masters, random.Random(seed), every, forgetful)
        began = shown = clock()
        while (now := clock()) < began + seconds:
            faults.step()
            if now >= shown + SHOWN_EVERY:
                shown = now
                _show(members, now - began, faults)
            time.sleep(min(faults.left(), 0.1))
        faults.end()
        wrong = _still_granted(members) + members.go_home()
        lasted = clock() - began
    writes, total = ledger.seen(database, names)
    report = Report(fenced, lasted, faults.counts, members.events, writes, total)
    return report, wrong + report.broken()


def _show(members: Crew, seconds: float, faults: Faults) -> None:
    grants = sum(event.what == "granted" for event in members.events)
    say(f"{seconds:6.0f} s: {grants:,} grants, {sum(faults.counts.values())} faults")


def _still_granted(members: Crew) -> list[str]:
    """Wait until somebody is granted a lock that was asked for after all faults were over."""
    over = clock()
    while clock() < over + PATIENCE:
        asked = {e.worker for e in members.events if e.what == "acquire" and e.at > over}
        if any(e.worker in asked and e.what == "granted" and e.at > over for e in members.events):
            return []
        time.sleep(0.05)
    return [f"nobody was granted a lock within {PATIENCE:g} s after the last fault"]
