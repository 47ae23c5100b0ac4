"""A lock that goes to a real Celery worker, and from a thread to a task, on real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import ROOT
from tests.timeouts import generous_timeouts
from tests.waiting import until
from tests.wire.variants import HOLDER, joined, open_variant

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture
def environment(masters: list[LocalMaster], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "messages").mkdir()
    section = {
        "MASTERS": [master.url for master in masters[:3]],
        "RESTART_DELAY": 0,
        "MAX_TTL": 60,
        **generous_timeouts(1),
    }
    own = {"HANDING_DIRECTORY": str(tmp_path), "HANDING_REDLOCK": json.dumps({"default": section})}
    return {**os.environ, **own}


@pytest.fixture
def worker(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with one process for tasks, which it replaces when that is killed."""
    command = [sys.executable, "-m", "celery", "-A", "tests.live.handing.shop", "worker"]
    options = ["--concurrency=1", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    with subprocess.Popen([*command, *options], cwd=ROOT, env=environment) as process:
        yield process
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


def notes(environment: dict[str, str]) -> list[list[str]]:
    path = Path(environment["HANDING_DIRECTORY"]) / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_giver_and_a_killed_worker_leave_one_holder_at_a_time(
    environment: dict[str, str], worker: subprocess.Popen[bytes]
) -> None:
    giver = [sys.executable, "-m", "tests.live.handing.shop", "die"]
    ended = subprocess.run(giver, cwd=ROOT, env=environment, check=False, timeout=120)
    assert ended.returncode == -9
    until(lambda: len(notes(environment)) == 4, "the task was delivered twice", seconds=120)
    gave, took, used, after = notes(environment)
    assert [gave[0], took[0], used[0], after[0]] == ["gave", "took", "used", "after"]
    assert took[1:3] == gave[1:3], "the worker holds the same lock with the same fence"
    assert int(after[2]) > int(took[2])
    assert float(after[3]) > float(took[3]) + 2.5, (
        "the lock of the killed process ends with its TTL"
    )


def test_a_lock_of_a_loop_that_has_ended_is_buried_when_it_is_handed_on(
    masters: list[LocalMaster],
) -> None:
    with joined("threads", masters[:3]) as threads:
        with open_variant("loop", threads.backend) as loop:
            loop.start()
            loop.wait_usable(3)
            held = loop.acquire("order:1")
            loop.settle()
        tombstone = f"redlock:tomb:{held.token}"
        with masters[2].client() as client:
            client.delete("redlock:lock:order:1")  # as if the acquire were still on its way
            threads.backend.acquire(held.names, 30, 0.0, HOLDER, 1, held)
            threads.backend.post_release(held)  # as `Handing.ticket` does
            threads.settle()
            until(lambda: client.exists(tombstone), "the token cannot be set any more")
