"""Martin Kleppmann's example of a paused lock holder, on real masters and databases.

From "How to do distributed locking" (2016). Client 1 acquires the lock, reads, and is paused for
longer than the TTL: by its garbage collector in the article, by SIGSTOP here. Client 2 acquires
the lock, as it should, reads, and writes. Client 1 resumes and writes what it computed from its
old read: an update is lost, although each client held the lock when it began.

No lock can prevent this. A fencing token can: client 2 has a higher one, the row records it, and
the late write of client 1 is refused, also if it waits for the row until client 2 has committed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import pytest_django
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from pytest_django import Settings

from redlock_django import LockLost, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.lock import Lock
from redlock_django.testing.masters import LocalMaster
from tests.aliases import database_alias
from tests.live.accounts import Account
from tests.programs import started
from tests.timeouts import patient_site

pytestmark = [pytest.mark.live, pytest.mark.postgres]
ALIAS = "fencing"
AMOUNT = 30


@pytest.fixture(params=["postgres", "mysql"])
def database(
    request: pytest.FixtureRequest, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[dict[str, Any]]:
    """Create account 1 in a database, connect it as "fencing", and return its entry."""
    entry: dict[str, Any] = request.getfixturevalue(request.param)
    with django_db_blocker.unblock(), database_alias(ALIAS, entry, tables=[Account]):
        Account.objects.using(ALIAS).create(pk=1)
        yield entry


CLIENT_1 = """
    from redlock_django import LockLost
    from tests.live.accounts import Account
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


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    "database",
    ["postgres", pytest.param("mysql", marks=pytest.mark.nightly)],
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


def _mariadb(level: str, *, refuses: bool) -> dict[str, Any]:
    # On by default since 11.6.2; it has an effect only at REPEATABLE READ.
    return {
        "isolation_level": level,
        "init_command": f"SET SESSION innodb_snapshot_isolation = {'ON' if refuses else 'OFF'}",
    }


@pytest.mark.parametrize(
    ("database", "options", "refuses"),
    [
        ("postgres", {"isolation_level": IsolationLevel.READ_COMMITTED}, False),
        ("postgres", {"isolation_level": IsolationLevel.REPEATABLE_READ}, True),
        ("mysql", _mariadb("read committed", refuses=True), False),
        ("mysql", _mariadb("repeatable read", refuses=False), False),
        ("mysql", _mariadb("repeatable read", refuses=True), True),
    ],
    indirect=["database"],
    ids=[
        "postgres-read committed",
        "postgres-repeatable read",
        "mariadb-read committed",
        "mariadb-repeatable read",
        "mariadb-snapshot isolation",
    ],
)
def test_the_database_compares_the_fence_again(
    settings: Settings, database: dict[str, Any], options: dict[str, Any], refuses: bool
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}}
    connections.settings[ALIAS]["OPTIONS"] = options
    rows = Account.objects.using(ALIAS).filter(pk=1)
    late, reading, end = _expired_lock(), threading.Event(), []

    def write_late() -> None:
        for _ in range(2):
            try:
                with transaction.atomic(using=ALIAS):
                    rows.get()  # a snapshot begins here
                    reading.set()
                    time.sleep(0.2)
                    rows.fenced(late).update(balance=0)
                end.append("wrote")
            except (LockLost, OperationalError) as error:
                end.append(type(error).__name__)
        connections[ALIAS].close()

    thread = threading.Thread(target=write_late)
    with lock("account:1") as held:
        with transaction.atomic(using=ALIAS):
            rows.fenced(held).update(balance=50)
            thread.start()
            assert reading.wait(60)
            time.sleep(0.6)  # by now the late write waits for the row
            assert thread.is_alive()
        thread.join(60)
    # A database may refuse to overwrite a row that is newer than the snapshot, with an error that
    # asks for the transaction to be repeated; the second attempt sees the newer fence.
    assert end == ["OperationalError" if refuses else "LockLost", "LockLost"]
    assert rows.get().balance == 50


def _expired_lock() -> Lock:
    """Return a lock whose lease has expired; the next holder gets a higher fence."""
    held = lock("account:1").acquire()
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    now = backend.now
    backend.now = lambda: now() + 60
    return held
