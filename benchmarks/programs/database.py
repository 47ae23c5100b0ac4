"""Locks in PostgreSQL beside other ways to lock there.

    uv run --with django-pglock --with django-db-mutex python -m benchmarks database

Without the peers they are left out. All contenders acquire and release one lock, in turn. The floor
is a bare `INSERT … ON CONFLICT DO UPDATE` and `UPDATE` on a connection of Django. Never compare
absolute figures of two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Callable

from benchmarks.programs import (
    HOLDER,
    NAME,
    Contenders,
    configure,
    ours,
    show_hand_off,
    show_pairs,
    show_wakes,
)

BARE_TABLE = "CREATE TABLE bare (resource varchar(512) PRIMARY KEY, token text, ends timestamptz)"
BARE_TAKE = (
    "INSERT INTO bare VALUES (%s, %s, clock_timestamp() + interval '30 s') "
    "ON CONFLICT (resource) DO UPDATE SET token = excluded.token, ends = excluded.ends "
    "WHERE bare.ends <= clock_timestamp() RETURNING token"
)
BARE_RELEASE = "UPDATE bare SET ends = clock_timestamp() WHERE resource = %s AND token = %s"
LIMIT = 3  # of permits
PEERS = [name for name in ("pglock", "db_mutex") if importlib.util.find_spec(name)]


def main() -> None:
    """Start PostgreSQL, measure, and print three tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks database")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--wakes", type=int, default=100)
    given = parser.parse_args()
    from tests.postgres import local_postgres

    with local_postgres() as entry:
        configure(
            DATABASES={"default": {**entry, "OPTIONS": {}}},
            DATABASE_ROUTERS=[],
            REDLOCK={"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}},
            INSTALLED_APPS=["redlock_django", *(name for name in PEERS if name == "db_mutex")],
        )
        from django.core.management import call_command
        from django.db import connection

        from redlock_django import locks

        call_command("migrate", verbosity=0)
        try:
            show_pairs("Pairs", contenders(), given.rounds, given.pairs)
            show_pairs("Transactions", transactions(), given.rounds, given.pairs)
            show_wakes(locks["default"].backend, given.wakes)
            show_hand_off("a waiter for a permit is woken", permits(), given.wakes)
        finally:
            locks.close()
            connection.close()


def permits() -> Callable[[bool], Callable[[], object]]:
    """Hold all permits of a name but one; return the function that acquires that one."""
    from redlock_django import locks

    backend = locks["default"].backend
    for _ in range(LIMIT - 1):
        backend.acquire(("export",), 3600, 0, HOLDER, LIMIT)

    def hold(wait: bool) -> Callable[[], object]:
        lease = backend.acquire(("export",), 30, 20 if wait else 0, HOLDER, LIMIT)
        return lambda: backend.release(lease)

    return hold


def contenders() -> Contenders:
    """Return a function for each contender, which acquires and releases the lock."""
    from django.db import connection

    from redlock_django import locks

    backend, cursor, loop = locks["default"].backend, connection.cursor(), asyncio.new_event_loop()
    cursor.execute(BARE_TABLE)

    def bare() -> None:
        cursor.execute(BARE_TAKE, [NAME, "t"])
        assert cursor.fetchall()
        cursor.execute(BARE_RELEASE, [NAME, "t"])

    async def arun() -> None:
        await backend.arelease(await backend.aacquire((NAME,), 30, 0, HOLDER))

    def permit() -> None:
        backend.release(backend.acquire((NAME,), 30, 0, HOLDER, LIMIT))

    found = {"bare INSERT + UPDATE": bare, **ours(backend)}
    found[f"DatabaseBackend, limit={LIMIT}"] = permit
    # About 20 µs of it are the start and the end of the loop's run.
    found["DatabaseBackend, async"] = lambda: loop.run_until_complete(arun())
    if "pglock" in PEERS:
        from pglock import advisory

        def pglock() -> None:
            with advisory(NAME, timeout=0) as taken:
                assert taken

        found["django-pglock"] = pglock
    if "db_mutex" in PEERS:
        from db_mutex.db_mutex import db_mutex

        def mutex() -> None:
            with db_mutex(NAME):
                pass

        found["django-db-mutex"] = mutex
    return found


def transactions() -> Contenders:
    """Return a function for each lock that is a transaction, which begins and commits it."""
    from django.db import connection, transaction

    from redlock_django import transaction_lock

    def bare() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(42)")
            assert cursor.fetchone() == (True,)

    def locked() -> None:
        with transaction_lock(NAME):
            pass

    found = {"atomic() + pg_advisory": bare, "transaction_lock()": locked}
    if "pglock" in PEERS:
        from pglock import advisory

        def pglock() -> None:
            with transaction.atomic():
                assert advisory(NAME, timeout=0, xact=True).acquire()

        found["django-pglock, xact"] = pglock
    return found
