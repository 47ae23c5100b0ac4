"""Martin Kleppmann's example of a paused lock holder, on real masters and databases.

From "How to do distributed locking" (2016). Client 1 acquires the lock, reads, and is paused for
longer than the TTL: by its garbage collector in the article, by SIGSTOP here. Client 2 acquires
the lock, as it should, reads, and writes. Client 1 resumes and writes what it computed from its
old read: an update is lost, although each client held the lock when it began.

No lock can prevent this. A fencing token can: client 2 has a higher one, the row records it, and
the late write of client 1 is refused.
"""

from __future__ import annotations

import signal
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from pytest_django import Settings

from redlock_django import lock, locks
from tests.live.fencing.accounts import Account
from tests.programs import started
from tests.timeouts import patient_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]
AMOUNT = 30

CLIENT_1 = """
    from redlock_django import LockLost
    from tests.live.fencing.accounts import Account
    fenced = sys.argv[1] == "fenced"
    with lock("account:1", ttl=1, wait=60) as held:
        rows = Account.objects.filter(pk=1)
        account = rows.fenced(held).claim().get() if fenced else rows.get()
        print("read", account.balance, flush=True)
        sys.stdin.readline()  # the test stops the process here, for longer than its TTL
        left = account.balance - int(sys.argv[2])
        try:
            if fenced:
                rows.fenced(held).update(balance=left)
            else:
                rows.update(balance=left)
        except LockLost as error:
            print(f"refused: {error}")
        else:
            print(f"wrote {left}")
"""


@pytest.fixture
def three(masters: list[LocalMaster], settings: Settings) -> Iterator[list[LocalMaster]]:
    """Return three masters that are declared new, in which this process has its locks."""
    settings.REDLOCK = patient_site(masters[:3], RESTART_DELAY="auto")
    call_command("redlock_init", stdout=StringIO())
    yield masters[:3]
    locks.close()


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
    three: list[LocalMaster], database: dict[str, Any], how: str, ending: str, left: int
) -> None:
    rows = Account.objects.using("fencing").filter(pk=1)
    with started(
        CLIENT_1,
        how,
        str(AMOUNT),
        ready="read 100",
        redlock=patient_site(three, 1.0, RESTART_DELAY="auto"),
        DATABASES={"default": database},
    ) as client_1:
        client_1.send_signal(signal.SIGSTOP)
        with lock("account:1", wait=60) as held:  # client 2 acquires it when the TTL is over
            if how == "fenced":
                account = rows.fenced(held).claim().get()
                rows.fenced(held).update(balance=account.balance - 50)
            else:
                rows.update(balance=rows.get().balance - 50)
        client_1.send_signal(signal.SIGCONT)
        out, _ = client_1.communicate("write\n", timeout=90)
    assert out.startswith(ending)
    assert rows.get().balance == left
