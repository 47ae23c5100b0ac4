"""Every combination of view, decorators, transactions and database keeps its promises over HTTP.

Each cell is one view of a site on a real server. Several clients increment one counter, and send
every request twice if it has a key. Either no update is lost and every key has one effect, or the
combination is refused with a message that says what to write instead. There is no third kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections

from redlock_django.models import IdempotencyRecord
from redlock_django.testing.masters import LocalMaster
from tests.live.matrix.cells import DATABASES, DECORATORS, VIEWS, Kind, is_refused, kinds
from tests.live.matrix.serving import Site, serving

CLIENTS, KEYS = 3, 2  # of each client
INCREMENTS = CLIENTS * KEYS
numbers = itertools.count(1)  # of the counters
SAYS = ("Put @", "ATOMIC_REQUESTS", "needs redlock_django.contrib.drf.LockAPIMixin")
"""The part of each refusal that names what to write instead."""


BY_DAY = [Kind("sqlite", False, False), Kind("sqlite", True, True)]
BY_DAY += [Kind("postgres", True, False), Kind("postgres", False, True)]
"""Every pair of two of their properties is covered."""


def _cells() -> Iterator[Any]:
    """Yield all cells; by day, each view with its decorators is on the first kind and another."""
    both = itertools.product(VIEWS, DECORATORS)
    for number, (view, decorators) in enumerate(both):
        for kind in kinds(DATABASES):
            names = [kind.database, "atomic" if kind.atomic else "plain", *["outer"] * kind.outer]
            cell = "-".join([view, decorators, *names])
            by_day = kind in (BY_DAY[0], BY_DAY[1 + number % 3])
            marks = [] if by_day else [pytest.mark.nightly]
            yield pytest.param(view, decorators, kind, id=cell, marks=marks)


@pytest.fixture(scope="module")
def databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return an entry of DATABASES for each kind; only SQLite if PostgreSQL is not installed."""
    sqlite = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path_factory.mktemp("matrix") / "matrix.sqlite3"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
    try:
        postgres = request.getfixturevalue("postgres")
    except pytest.skip.Exception:
        return {"sqlite": sqlite}
    server = {name: postgres[name.upper()] for name in ("host", "port", "user")}
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE matrix")
    return {"sqlite": sqlite, "postgres": {**postgres, "NAME": "matrix"}}


Ask = Callable[[str, str], int]


@pytest.fixture(scope="module")
def ask(databases: dict[str, dict[str, Any]], django_db_blocker: Any) -> Iterator[Ask]:
    """Create the tables, and return a function that sends SQL to a database."""
    configured = connections.configure_settings({"default": {}, **databases})

    def send(database: str, statement: str) -> int:
        with django_db_blocker.unblock(), connections[database].cursor() as cursor:
            cursor.execute(statement)
            return int(cursor.fetchone()[0]) if cursor.description else 0

    for database in databases:
        connections.settings[database] = configured[database]
        send(database, "CREATE TABLE counter (id integer PRIMARY KEY, value integer)")
        send(database, "CREATE TABLE effect (counter integer)")
        with django_db_blocker.unblock(), connections[database].schema_editor() as editor:
            editor.create_model(IdempotencyRecord)
    yield send
    for database in databases:
        with django_db_blocker.unblock():
            connections[database].close()
        del connections[database], connections.settings[database]


@pytest.fixture(scope="module")
def sites(
    ask: Ask, databases: dict[str, dict[str, Any]], site_masters: list[LocalMaster]
) -> Iterator[dict[tuple[str, Kind], Site]]:
    with serving(databases, site_masters) as running:
        yield running


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize(("view", "decorators", "kind"), list(_cells()))
def test_every_combination_keeps_its_promise_or_is_refused(
    ask: Ask,
    sites: dict[tuple[str, Kind], Site],
    view: str,
    decorators: str,
    kind: Kind,
) -> None:
    database = kind.database
    site = sites.get(("asgi" if view == "asynchronous" else "wsgi", kind))
    if site is None:
        pytest.skip("PostgreSQL is not installed")
    pk = next(numbers)
    ask(database, f"INSERT INTO counter (id, value) VALUES ({pk}, 0)")
    keys = [f"{pk}-{number}" for number in range(INCREMENTS)]
    times = 1 if decorators == "lock-only" else 2
    answers = site.press(f"/{view}/{decorators}/{pk}/", [key for key in keys for _ in range(times)])
    value = ask(database, f"SELECT value FROM counter WHERE id = {pk}")
    effects = ask(database, f"SELECT count(*) FROM effect WHERE counter = {pk}")
    if is_refused(view, decorators, kind):
        assert {answer.status for answer in answers} == {500}
        assert all(any(words in answer.text for words in SAYS) for answer in answers), answers
        assert (value, effects) == (0, 0)
        return
    assert {answer.status for answer in answers} == {200}, (answers, site.log[-3000:])
    assert effects == INCREMENTS
    if decorators != "idempotent-only":
        assert value == INCREMENTS
