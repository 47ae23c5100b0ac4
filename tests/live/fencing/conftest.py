"""The databases of the fencing tests: PostgreSQL, and MariaDB if it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.aliases import database_alias
from tests.live.fencing.accounts import Account

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest_django

ALIAS = "fencing"


@pytest.fixture(params=["postgres", "mysql"])
def database(
    request: pytest.FixtureRequest, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[dict[str, Any]]:
    """Create account 1 in a database, connect it as "fencing", and return its entry."""
    entry: dict[str, Any] = request.getfixturevalue(request.param)
    with django_db_blocker.unblock(), database_alias(ALIAS, entry, tables=[Account]):
        Account.objects.using(ALIAS).create(pk=1)
        yield entry
