"""Lock outside, transaction inside: real requests, real processes, real databases (B33)."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.left_over import locked, nothing_left
from tests.timeouts import generous_timeouts

pytestmark = pytest.mark.live
MANY = 60
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=[POSTGRES, "sqlite"], scope="module")
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return an entry of DATABASES with a transaction around every view."""
    if request.param == "postgres":
        return {**request.getfixturevalue("postgres"), "ATOMIC_REQUESTS": True}
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path_factory.mktemp("counter") / "db.sqlite3"),
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }


@contextmanager
def sites(
    masters: list[LocalMaster], database: dict[str, Any], *, processes: int = 1, look: bool = False
) -> Iterator[list[str]]:
    """Return the addresses of so many processes that serve one counter."""
    common = {"MASTERS": [m.url for m in masters], "RESTART_DELAY": 0, **generous_timeouts(1)}
    common["MAX_WAITERS"] = MANY
    redlock = {
        "default": {**common, "TTL": 30},  # no stall of a busy machine lasts so long
        "renewed": {**common, "TTL": 1.5},  # its loss is noticed soon
        "unrenewed": {**common, "TTL": 1, "MAX_HOLD": 1},
    }
    with ExitStack() as stack:
        started = []
        for number in range(processes):
            environment = {
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.live.counter_settings",
                "COUNTER_DATABASE": json.dumps(database),
                "COUNTER_REDLOCK": json.dumps(redlock),
                **({} if number else {"COUNTER_CREATE": "1"}),
                **({"COUNTER_LOOK": "1"} if look else {}),
            }
            process = subprocess.Popen(
                [sys.executable, "-c", "from tests.live.counter_site import main; main()"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            started.append(process)
        addresses = []
        for process in started:
            assert process.stdout is not None
            addresses.append(f"127.0.0.1:{process.stdout.readline().split()[-1]}")
        yield addresses


def get(site: str, url: str) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection(site, timeout=90)) as connection:
        connection.request("GET", url, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body.startswith(b"{") else {}


def crowd(addresses: list[str], url: str) -> list[int]:
    """Send many requests at once, to all processes; return their statuses."""
    gate = threading.Barrier(MANY)

    def one(number: int) -> int:
        gate.wait(60)
        return get(addresses[number % len(addresses)], url)[0]

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    "database", [POSTGRES, pytest.param("sqlite", marks=pytest.mark.nightly)], indirect=True
)
def test_sixty_increments_under_a_lock_are_kept(
    masters: list[LocalMaster], database: dict[str, Any]
) -> None:
    """Without the lock some are lost, except in SQLite, whose transactions exclude each other."""
    with sites(masters, database, processes=2) as addresses:
        assert crowd(addresses, "/1/locked/") == [200] * MANY
        assert get(addresses[0], "/")[1]["n"] == MANY
        assert locked(masters) == {}
        if "sqlite" not in database["ENGINE"]:
            assert any(loses_some(addresses) for _ in range(5)), "nothing was ever lost"


def loses_some(addresses: list[str]) -> bool:
    """Return whether some increments without the lock are lost."""
    before = get(addresses[0], "/")[1]["n"]
    assert crowd(addresses, "/1/unlocked/") == [200] * MANY
    return bool(get(addresses[0], "/")[1]["n"] < before + MANY)


@pytest.mark.slow
@pytest.mark.fault
def test_a_transaction_is_committed_before_the_lock_is_free_or_rolled_back(
    masters: list[LocalMaster], database: dict[str, Any]
) -> None:
    with sites(masters, database, look=True) as [site]:
        for number in range(1, 6):
            assert get(site, "/1/locked/") == (200, {"n": number})
            # What another connection read at the moment when the lock was released.
            assert get(site, "/")[1]["seen_at_release"] == list(range(1, number + 1))
        for url in ("/1/robbed/", "/1/slow/"):
            status, body = get(site, url)
            assert (status, body.get("code")) == (503, "lock-lost")
            assert get(site, "/")[1]["n"] == 5, f"{url} was committed"
        nothing_left(masters)
        assert get(site, "/1/failing/")[0] == 500
        assert get(site, "/")[1]["n"] == 5
        nothing_left(masters)
        assert get(site, "/1/locked/") == (200, {"n": 6})
