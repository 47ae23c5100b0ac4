"""An UPDATE of a late holder that waits for the row until a newer holder has committed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from redlock_django import LockLost, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from tests.live.fencing.accounts import Account
from tests.live.fencing.conftest import ALIAS

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.locking.lock import Lock

pytestmark = [pytest.mark.live, pytest.mark.postgres]


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
