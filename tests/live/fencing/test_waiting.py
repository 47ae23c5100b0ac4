"""A late holder's UPDATE that waits for the row until the newer holder has committed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from redlock_django import LockLost, lock, locks
from redlock_django.backends.memory import MemoryBackend
from tests.live.fencing.accounts import Account
from tests.live.fencing.conftest import ALIAS

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.locking import Lock

pytestmark = [pytest.mark.live, pytest.mark.postgres]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_it_looks_at_the_fence_again(
    settings: Settings, database: dict[str, Any], isolation: str
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}}
    is_mysql = "mysql" in database["ENGINE"]
    if is_mysql:
        options: dict[str, Any] = {"isolation_level": isolation}
    else:
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        options = {"isolation_level": IsolationLevel[isolation.upper().replace(" ", "_")]}
    connections.settings[ALIAS]["OPTIONS"] = options
    rows = Account.objects.using(ALIAS).filter(pk=1)
    late, asking, end = _overtaken(), threading.Event(), []

    def write_late() -> None:
        try:
            with transaction.atomic(using=ALIAS):
                rows.get()  # with a snapshot, it begins here
                asking.set()
                time.sleep(0.2)
                rows.fenced(late).update(balance=0)
            end.append("wrote")
        except (LockLost, OperationalError) as error:
            end.append(type(error).__name__)
        finally:
            connections[ALIAS].close()

    thread = threading.Thread(target=write_late)
    with lock("account:1") as held:
        with transaction.atomic(using=ALIAS):
            rows.fenced(held).update(balance=50)
            thread.start()
            assert asking.wait(20)
            time.sleep(0.6)  # now it waits for the row
            assert thread.is_alive()
        thread.join(20)
    # PostgreSQL refuses a write over what a snapshot does not show by itself.
    serialized = isolation == "repeatable read" and not is_mysql
    assert end == ["OperationalError" if serialized else "LockLost"]
    assert rows.get().balance == 50


def _overtaken() -> Lock:
    """A holder whose time is over; the next one gets a higher fence."""
    held = lock("account:1").acquire()
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    now = backend.now
    backend.now = lambda: now() + 60
    return held
