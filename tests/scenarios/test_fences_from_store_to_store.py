"""A site that moves its locks to another store and back: no fence is lower than an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from redlock_django import LockLost, lock
from redlock_django.locking.handler import locks
from tests.live.fencing.accounts import Account
from tests.live.linked import linked
from tests.scenarios.conftest import DATABASE, on

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres]


@pytest.fixture
def account(postgres_tables: None) -> Iterator[Any]:
    """Create account 1 in PostgreSQL, and return its rows."""
    with connections["pg"].schema_editor() as editor:
        editor.create_model(Account)
    Account.objects.using("pg").create(pk=1)
    yield Account.objects.using("pg").filter(pk=1)
    with connections["pg"].schema_editor() as editor:
        editor.delete_model(Account)


@pytest.fixture
def use(masters: list[LocalMaster], settings: Settings) -> Iterator[Callable[[str], None]]:
    """Return a function that moves the site to a store."""
    # A store that joins this test is one more section here, and a name in the test.
    sections = {"redis": on(masters[:3]), "database": {"BACKEND": DATABASE, "DATABASE": "pg"}}

    def put(store: str) -> None:
        settings.REDLOCK = {"default": sections[store]}
        if store == "redis":
            linked()

    yield put
    locks.close()


def test_the_late_holder_of_another_store_is_refused(
    account: Any, use: Callable[[str], None]
) -> None:
    fences = []
    for store in ("redis", "database", "redis", "database", "redis"):
        use(store)
        late, held = lock("account:1"), lock("account:1")
        with late:
            account.fenced(late).update(balance=50)
            fences.append(late.fence)
        with held:
            fences.append(held.fence)
            account.fenced(held).update(balance=60)
            stale = account.fenced(held)
        use("redis" if store == "database" else "database")
        with lock("account:1") as newer:
            fences.append(newer.fence)
            account.fenced(newer).update(balance=70)
        with pytest.raises(LockLost, match="a newer holder"):
            stale.update(balance=0)
        assert account.get().balance == 70
    assert fences == sorted(set(fences))
