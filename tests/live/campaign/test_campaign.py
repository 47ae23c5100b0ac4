"""The campaign: its report finds what is broken, and a short run is without a broken promise."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from redlock_django.locking.lock import Lock
from tests.live.campaign.faults import KINDS, kinds_of
from tests.live.campaign.history import Event
from tests.live.campaign.report import (
    HEALTHY,
    Window,
    availability,
    broken_promises,
    table,
)
from tests.live.campaign.stores import MariaDB, Masters, PostgreSQL, SqliteFile, ZooKeeper
from tests.live.campaign.worker import Threads, Worker
from tests.live.clocks import NoShim, build
from tests.live.network import namespace_obstacle
from tests.zookeeper import JAR

CHECKER = Path(__file__).with_name("history.py")
NOBODY: frozenset[str] = frozenset()


def _lease(worker: str, at: float, fence: int, until: float) -> list[Event]:
    return [
        Event(worker, "acquire", at - 0.1, "shared:0"),
        Event(worker, "granted", at, "shared:0", fence, until),
    ]


def test_there_are_more_than_thirty_kinds_of_faults() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert len(kinds_of(Masters)) > 30
    assert min(len(kinds_of(store)) for store in (PostgreSQL, MariaDB, SqliteFile, ZooKeeper)) > 8


def test_availability_is_the_share_of_tries_that_were_granted_while_a_fault_lasted() -> None:
    own = [
        Event("w1/main", "own", 1.0, "own:1", until=0.1, entry="granted"),
        Event("w1/main", "own", 2.0, "own:1", until=0.1, entry="granted"),
        Event("w1/main", "own", 2.9, "own:1", until=0.3, entry="unreachable"),
    ]
    windows = [Window(HEALTHY, 0.5, 1.5), Window("a fault", 1.5, 3.0, 0.2)]
    healthy, fault = availability(windows, own, ["a fault", "another one"])
    assert (healthy.tries, healthy.granted) == (1, 1.0)
    assert (fault.tries, fault.granted, fault.median, fault.gap, fault.back) == (
        2, 0.5, 0.1, 1.0, 0.2,
    )  # fmt: skip
    assert "| a fault | 1 | 2 | 50.0 % | 100.0 ms | 100 ms | 1.00 s | 0.2 s |" in table([fault])


def test_overlaps_fences_errors_and_foreign_grants_are_reported() -> None:
    first = _lease("w1/a", 1.0, 7, 5.0)
    assert broken_promises([*first, *_lease("w2/a", 6.0, 8, 9.0)], NOBODY) == []
    assert "before the lease" in broken_promises([*first, *_lease("w2/a", 4.0, 8, 9.0)], NOBODY)[0]
    assert "the fence was" in broken_promises([*first, *_lease("w2/a", 6.0, 7, 9.0)], NOBODY)[0]
    failed = Event("w1/main", "own", 1.0, "own:1", entry="error: IndexError()")
    assert broken_promises([failed], NOBODY) == ["w1/main, own:1: error: IndexError()"]
    assert "of another deployment" in broken_promises(first, frozenset({"w1"}))[0]


def test_an_overlap_names_its_leases_and_the_faults_before_it() -> None:
    windows = [
        Window("long before", -9.0, -2.0),
        Window("clocks ahead", 2.0, 3.9, 0.1, (0.2, 0.0)),
        Window(HEALTHY, 3.5, 5.0),
    ]
    events = [*_lease("w1/a", 3.0, 7, 5.5), *_lease("w2/a", 5.4, 8, 9.0)]
    (wrong,) = broken_promises(events, NOBODY, windows)
    assert "the other: asked -2.500, granted -2.400, until +0.100, released +inf" in wrong
    assert wrong.endswith("; clocks ahead, -3.40 to -1.50, clocks (0.2, 0.0))")


@pytest.mark.parametrize(
    ("at", "fence", "shown"),
    [
        (6.0, 8, "2 grants, 0 of them broken"),
        (4.0, 8, "granted 1.000000 s before the lease of shared:0, fence 7, worker w1/a ended"),
        (6.0, 7, "the fence was granted before, to worker w1/a"),
    ],
)
def test_a_history_is_checked_without_the_package(
    tmp_path: Path, at: float, fence: int, shown: str
) -> None:
    events = [*_lease("w1/a", 1.0, 7, 5.0), *_lease("w2/a", at, fence, 9.0)]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(f"{json.dumps(event._asdict())}\n" for event in events))
    done = subprocess.run(
        [sys.executable, "-I", CHECKER, history], capture_output=True, text=True, check=False
    )
    assert shown in done.stdout, done.stderr
    assert done.returncode == (0 if "0 of them" in shown else 1)


def test_a_worker_reports_an_exception_of_a_release(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}}
    ending, seen = threading.Event(), list[tuple[Any, ...]]()
    way = Threads(ending)

    async def release(held: Lock) -> bool:
        ending.set()
        raise IndexError("a defect")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(way, "release", release)
    worker = Worker("w1", has_deadlines=True)
    monkeypatch.setattr(worker, "_ending", ending)
    monkeypatch.setattr(worker, "_report", lambda *said, **more: seen.append((*said, more)))
    way.run(worker._compete("a", way))
    thread, what, _, more = seen[-1]
    assert (thread, what, more) == ("a", "error", {"entry": "IndexError('a defect')"})


def test_a_history_without_grants_proves_nothing(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.touch()
    done = subprocess.run([sys.executable, "-I", CHECKER, history], check=False)
    assert done.returncode == 1


def test_the_checker_of_histories_stands_alone() -> None:
    assert "redlock_django" not in CHECKER.read_text()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.live
def test_a_short_campaign_keeps_all_promises(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := namespace_obstacle():
        pytest.skip(reason)
    try:
        build(tmp_path_factory.mktemp("shim"))
    except NoShim as why:
        pytest.skip(str(why))
    history = tmp_path_factory.mktemp("campaign") / "history.jsonl"
    command = [sys.executable, "-m", "tests.live.campaign", "--minutes", "0.05"]
    done = subprocess.run(
        [*command, "--history", str(history), "--only", "two masters cut off"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| two masters cut off | 1 |" in done.stdout
    checked = subprocess.run(
        [sys.executable, "-I", CHECKER, history], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"[1-9]\d+ grants, 0 of them broken\n", checked.stdout)
    assert done.stdout.endswith("all promises kept\n")


@pytest.mark.postgres
@pytest.mark.nightly
@pytest.mark.parametrize("store", ["postgresql", "mariadb", "sqlite", "zookeeper"])
def test_a_short_campaign_of_another_store_keeps_all_promises(
    store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        build(tmp_path_factory.mktemp("shim"))
    except NoShim as why:
        pytest.skip(str(why))
    if store == "mariadb" and shutil.which("mariadbd") is None:
        pytest.skip("MariaDB is not installed (apt-get install mariadb-server)")
    if store == "zookeeper" and not JAR.exists():
        pytest.skip("ZooKeeper is not installed (apt-get install zookeeper)")
    command = [sys.executable, "-m", "tests.live.campaign", "--store", store]
    done = subprocess.run(
        [*command, "--minutes", "1"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # On a fast machine a kind comes twice in a minute: SQLite has fewer of them.
    every_store = "| a worker killed (SIGKILL), and replaced |"
    of_databases = "| another transaction has all rows |"
    assert (every_store if store == "zookeeper" else of_databases) in done.stdout
    assert done.stdout.endswith("all promises kept\n")
