"""Fixtures for the tests of whole sites: databases, and masters that no other test uses."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster, local_masters
from tests.aliases import new_database
from tests.authority import make_certificates
from tests.contract.stores import DATABASE, MEMORY, ZOOKEEPER

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from tests.live.site.serving import Site, Tables


@pytest.fixture
def no_deadlock() -> Iterator[None]:
    """Break a deadlock by a signal, whose traceback shows where it is."""

    def stuck(*_: object) -> None:
        raise AssertionError("stuck")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(180)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a directory with a test CA (`ca.pem`) and a key pair for 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("authority"), "master", "IP:127.0.0.1")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that shifts the clocks of processes that preload it."""
    from tests.live.clocks import NoShim, build

    try:
        return build(tmp_path_factory.mktemp("shim"))
    except NoShim as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def site_masters() -> Iterator[list[LocalMaster]]:
    """Start five masters that no other test empties while a site is running."""
    with local_masters(5) as masters:
        yield masters


@pytest.fixture(scope="session")
def site_tables(
    postgres: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Callable[[str], Tables]]:
    """Return a function that creates the database of sites once: "postgres" or "sqlite"."""
    from tests.live.site.serving import Tables

    with ExitStack() as opened:

        @cache
        def of(kind: str) -> Tables:
            entry = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(tmp_path_factory.mktemp("site") / "site.sqlite3"),
                "OPTIONS": {
                    "timeout": 30,
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=WAL;",
                },
            }
            if kind == "postgres":
                # A separate database: other tests use the same tables in the default one.
                entry = opened.enter_context(new_database(postgres, "sites"))
            return opened.enter_context(closing(Tables(entry, django_db_blocker)))

        yield of


Open = Callable[..., AbstractContextManager["Site"]]


@pytest.fixture(scope="session")
def open_site(
    site_tables: Callable[[str], Tables], tmp_path_factory: pytest.TempPathFactory
) -> Open:
    """Return a function that runs a site, by a name such as "wsgi-atomic-postgres"."""
    from tests.live.site.serving import serving

    gates = tmp_path_factory.mktemp("gates")

    def opened(name: str, masters: list[LocalMaster], **how: Any) -> AbstractContextManager[Site]:
        server, _, database = name.rpartition("-")
        return serving(server, tables=site_tables(database), masters=masters, gates=gates, **how)

    return opened


@pytest.fixture(scope="session")
def sites(open_site: Open, site_masters: list[LocalMaster]) -> Iterator[Callable[[str], Site]]:
    """Return a function that starts a site once; all have the same masters."""
    with ExitStack() as running:
        yield cache(lambda name: running.enter_context(open_site(name, site_masters)))


@pytest.fixture
def site(request: pytest.FixtureRequest, sites: Callable[[str], Site]) -> Site:
    """Return the site named by the parameter."""
    return sites(request.param)


STORES = (
    *("redis", "postgres", "zookeeper"),  # each imports and waits in another way
    *(pytest.param(store, marks=pytest.mark.nightly) for store in ("memory", "sqlite", "mysql")),
)


@pytest.fixture(params=STORES)
def store_settings(
    request: pytest.FixtureRequest, tmp_path: Path, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Return the settings of a site that keeps its locks in one of the stores."""
    store = request.param
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "site.sqlite3")}
    section: dict[str, Any] = {"TTL": 2}
    if store == "redis":
        urls = [master.url for master in request.getfixturevalue("masters")[:3]]
        section |= {"MASTERS": urls, "RESTART_DELAY": 0, "MASTER_TIMEOUT": 0.9}
    elif store == "memory":
        section["BACKEND"] = MEMORY
    elif store == "zookeeper":
        hosts = [request.getfixturevalue("zookeeper").host]
        section |= {"BACKEND": ZOOKEEPER, "HOSTS": hosts, "ROOT": f"/{secrets.token_hex(4)}"}
        settings.REDLOCK = {"default": section}
        locks["default"].backend.declare_new()
    else:
        section |= {"BACKEND": DATABASE, "DATABASE_TIMEOUT": 1}
    with ExitStack() as stack:
        if store in ("postgres", "mysql"):
            name = f"site_{secrets.token_hex(4)}"
            database = stack.enter_context(new_database(request.getfixturevalue(store), name))
        yield {"REDLOCK": {"default": section}, "DATABASES": {"default": database}}
