"""What the tests of whole sites share: their database, and masters nobody else touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.testing.masters import LocalMaster, local_masters

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.increments.serving import Counters, Site
    from tests.live.payments.paying import Books, Shop


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that shifts the clocks of the processes it is preloaded into."""
    from tests.live.clocks import NoShim, build

    try:
        return build(tmp_path_factory.mktemp("shim"))
    except NoShim as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def counters(postgres: dict[str, Any]) -> Iterator[Counters]:
    from tests.live.increments.serving import Counters

    made = Counters(postgres)
    yield made
    made.close()


@pytest.fixture(scope="session")
def site_masters() -> Iterator[list[LocalMaster]]:
    """Three masters that no other test empties under a running server."""
    with local_masters(3) as masters:
        yield masters


@pytest.fixture(scope="session")
def sites(
    counters: Counters, postgres: dict[str, Any], site_masters: list[LocalMaster]
) -> Iterator[Callable[[str, bool], Site]]:
    """Give the running server of a kind, with ATOMIC_REQUESTS or without; started once."""
    from tests.live.increments.serving import serving

    with ExitStack() as running:

        @cache
        def site(server: str, atomic: bool) -> Site:
            return running.enter_context(
                serving(server, database=postgres, masters=site_masters, atomic=atomic)
            )

        yield site


@pytest.fixture
def site(request: pytest.FixtureRequest, sites: Callable[[str, bool], Site]) -> Site:
    """The server named by the parameter: "wsgi-atomic", "asgi-plain" and so on."""
    server, _, transactions = request.param.partition("-")
    return sites(server, transactions == "atomic")


@pytest.fixture(scope="session")
def books(
    postgres: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Books]]:
    """Give the database for payments of a kind, "postgres" or "sqlite"; made once."""
    import psycopg

    from tests.live.payments.paying import Books

    with ExitStack() as opened:

        @cache
        def of(kind: str) -> Books:
            if kind == "postgres":
                # Not the one in which others make and drop the same tables.
                server = {name: postgres[name.upper()] for name in ("host", "port", "user")}
                with psycopg.connect(**server, dbname="postgres", autocommit=True) as connection:
                    connection.execute("CREATE DATABASE payments")
                return opened.enter_context(closing(Books({**postgres, "NAME": "payments"})))
            entry = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(tmp_path_factory.mktemp("payments") / "payments.sqlite3"),
                "OPTIONS": {
                    "timeout": 30,
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=WAL;",
                },
            }
            return opened.enter_context(closing(Books(entry)))

        yield of


@pytest.fixture(scope="session")
def shop_cache() -> Iterator[LocalMaster]:
    """The Redis that the cache of every shop is in; it forgets nothing when it is killed."""
    with local_masters(1, args=["--appendonly", "yes", "--appendfsync", "always"]) as (server,):
        yield server


@pytest.fixture(scope="session")
def shops(
    books: Callable[[str], Books],
    shop_cache: LocalMaster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Shop]]:
    """Give the running shop of a name such as "wsgi-atomic-postgres"; started once."""
    from tests.live.payments.paying import shop

    gates = tmp_path_factory.mktemp("gates")
    with ExitStack() as running:
        masters = running.enter_context(local_masters(5))

        @cache
        def of(name: str) -> Shop:
            site, _, database = name.rpartition("-")
            return running.enter_context(
                shop(site, books=books(database), masters=masters, cache=shop_cache, gates=gates)
            )

        yield of


@pytest.fixture
def shop(request: pytest.FixtureRequest, shops: Callable[[str], Shop]) -> Shop:
    """The shop named by the parameter."""
    return shops(request.param)
