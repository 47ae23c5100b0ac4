"""Martin Kleppmann's example of a paused lock holder, on real masters and databases.

From "How to do distributed locking" (2016). Client 1 acquires the lock, reads, and is paused for
longer than the TTL: by its garbage collector in the article, by SIGSTOP here. Client 2 acquires
the lock, as it should, reads, and writes. Client 1 resumes and writes what it computed from its
old read: an update is lost, although each client held the lock when it began.

No lock can prevent this. A fencing token can: client 2 has a higher one, the row records it, and
the late write of client 1 is refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from redlock_django import lock, locks
from tests.live.fencing.accounts import Account
from tests.live.fencing.withdraw import AMOUNT
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def client_1(masters: list[LocalMaster], database: dict[str, Any]) -> Iterator[Any]:
    """Start client 1, with or without a fence, and wait until it has read."""
    urls = ",".join(master.url for master in masters[:3])
    env = {**os.environ, "MASTERS": urls, "DATABASE": json.dumps(database)}
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.fencing.withdraw", how],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "read 100\n"
        return process

    with override_settings(REDLOCK={"default": {"MASTERS": urls, **generous_timeouts()}}):
        call_command("redlock_init", stdout=StringIO())
        yield start
        locks.close()
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.fault
@pytest.mark.parametrize(
    "database",
    ["postgres", pytest.param("mysql", marks=pytest.mark.nightly)],  # see test_waiting.py
    indirect=True,
)
@pytest.mark.parametrize(
    ("how", "ending", "left"),
    [
        ("unfenced", f"wrote {100 - AMOUNT}\n", 100 - AMOUNT),  # the update of client 2 is lost
        ("fenced", "refused: account:1: a newer holder of the lock has written to", 50),
    ],
    ids=["unfenced", "fenced"],
)
def test_a_holder_that_is_paused_beyond_its_ttl(
    client_1: Any, how: str, ending: str, left: int
) -> None:
    rows = Account.objects.using("fencing").filter(pk=1)
    first = client_1(how)
    first.send_signal(signal.SIGSTOP)
    with lock("account:1", wait=60) as held:  # client 2 acquires it when the TTL is over
        if how == "fenced":
            account = rows.fenced(held).claim().get()
            rows.fenced(held).update(balance=account.balance - 50)
        else:
            rows.update(balance=rows.get().balance - 50)
    first.send_signal(signal.SIGCONT)
    out, _ = first.communicate("write\n", timeout=90)
    assert out.startswith(ending)
    assert rows.get().balance == left
