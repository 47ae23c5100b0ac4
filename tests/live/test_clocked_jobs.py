"""Jobs that clocks start on several machines run once, although the clocks differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.clocks import Clock

pytestmark = [pytest.mark.live, pytest.mark.slow]

JOBS = 300
MACHINE = """
import json, os, sys, time
import django
from django.conf import settings

masters, begins, jobs = json.loads(sys.argv[1])
settings.configure(
    INSTALLED_APPS=["redlock_django"],
    REDLOCK={"default": {"MASTERS": masters, "RESTART_DELAY": 0, "MASTER_TIMEOUT": 1}},
)
django.setup()
from redlock_django import hold

@hold("job:<int:number>", min_hold=50, on_conflict="skip")
def job(number):
    print("once", number)

@hold("control:<int:number>", wait=60)
def control(number):
    print("control", number)

time.sleep(max(0.0, begins - time.time()))  # by the clock of this machine, as cron does
for number in range(jobs):
    job(number)
for number in range(10):
    control(number)
sys.stdout.flush()
os._exit(0)  # a machine that crashes right after its jobs
"""


def test_a_job_runs_once_although_clocks_differ(
    masters: list[LocalMaster], shim: Path, tmp_path: Path
) -> None:
    options = json.dumps([[master.url for master in masters], time.time() + 2.0, JOBS])
    machines = []
    for name, off in (("ahead", 2.0), ("behind", -2.0)):
        clock = Clock(tmp_path / name)
        clock.set(wall=off)
        machines.append(
            subprocess.Popen(
                [sys.executable, "-c", MACHINE, options],
                env={**os.environ, "LD_PRELOAD": str(shim), "CLOCK_SHIFT": str(clock.path)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    ran = Counter[str]()
    for machine in machines:
        ran.update(machine.communicate(timeout=150)[0].splitlines())
        assert machine.returncode == 0
    assert {line: times for line, times in ran.items() if line.startswith("once")} == {
        f"once {number}": 1 for number in range(JOBS)
    }
    assert {times for line, times in ran.items() if line.startswith("control")} == {2}
