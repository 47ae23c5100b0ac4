"""A site that moves its locks to another store and back: no fence is lower than an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from redlock_django import LockLost, lock
from redlock_django.locking.services import locks
from tests.contract.stores import ZOOKEEPER
from tests.live.accounts import Account
from tests.scenarios.conftest import IN_POSTGRES, on

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


@pytest.fixture(params=["database", "zookeeper"])
def stores(request: pytest.FixtureRequest, masters: list[LocalMaster]) -> list[dict[str, Any]]:
    """Return the settings of the stores in the order in which the site uses them."""
    redis, database = on(masters[:3]), IN_POSTGRES
    if request.param == "database":
        return [redis, database, redis, database]
    host = request.getfixturevalue("zookeeper").host
    zookeeper = {"BACKEND": ZOOKEEPER, "HOSTS": [host], "ROOT": "/fences", "ZOOKEEPER_TIMEOUT": 10}
    request.getfixturevalue("settings").REDLOCK = {"default": zookeeper}
    locks["default"].backend.declare_new()
    return [redis, database, zookeeper, redis, zookeeper, database]


def test_the_late_holder_of_another_store_is_refused(
    account: Any, stores: list[dict[str, Any]], settings: Settings
) -> None:
    fences, late = [], None
    for section in stores:
        settings.REDLOCK = {"default": section}
        with lock("account:1") as first:
            fences.append(first.fence)
            account.fenced(first).update(balance=50)
        with lock("account:1") as held:
            fences.append(held.fence)
            account.fenced(held).update(balance=60)
            if late is not None:  # it had the lock in the store before
                with pytest.raises(LockLost, match="a newer holder"):
                    late.update(balance=0)
            late = account.fenced(held)
    assert account.get().balance == 60
    assert fences == sorted(set(fences))
