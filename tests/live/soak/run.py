"""One soak, from the start of its workers to its report."""

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
from tests.live.soak.faults import Faults
from tests.live.soak.processes import TIMEOUT, Workers, workers_for
from tests.live.soak.report import Report
from tests.live.soak.worker import Task, lock_settings

PROGRESS_EVERY = 10.0  # seconds


def print_line(text: str) -> None:
    """Print a line and flush it."""
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
    """Run a soak; return its report and an error for each broken promise.

    The masters must be up and empty. The seed determines the faults, but not the steps of the
    workers during which they happen.
    """
    urls = [master.url for master in masters]
    names = [f"register:{number}" for number in range(registers)]
    ledger.make(database, names)
    with override_settings(REDLOCK=lock_settings(urls, forgetful)):
        call_command("redlock_init", stdout=StringIO())
    task = Task(urls, database, names, str(seed), fenced, forgetful=forgetful)
    with workers_for(task) as processes:
        for _ in range(workers):
            processes.start()
        for worker in processes.running:
            worker.wait_for("granted")
        faults = Faults(processes, masters, random.Random(seed), every, forgetful)
        began = shown = clock()
        while (now := clock()) < began + seconds:
            faults.step()
            if now >= shown + PROGRESS_EVERY:
                shown = now
                _show(processes, now - began, faults)
            time.sleep(min(faults.delay(), 0.1))
        faults.end()
        wrong = _still_granted(processes) + processes.finish()
        lasted = clock() - began
    writes, total = ledger.seen(database, names)
    report = Report(fenced, lasted, faults.counts, processes.events, writes, total)
    return report, wrong + report.broken()


def _show(processes: Workers, seconds: float, faults: Faults) -> None:
    grants = sum(event.what == "granted" for event in processes.events)
    print_line(f"{seconds:6.0f} s: {grants:,} grants, {sum(faults.counts.values())} faults")


def _still_granted(processes: Workers) -> list[str]:
    """Wait until a worker acquires a lock that it requested after the end of all faults."""
    over = clock()
    while clock() < over + TIMEOUT:
        asked = {e.worker for e in processes.events if e.what == "acquire" and e.at > over}
        if any(e.worker in asked and e.what == "granted" and e.at > over for e in processes.events):
            return []
        time.sleep(0.05)
    return [f"no worker was granted a lock within {TIMEOUT:g} s after the last fault"]
