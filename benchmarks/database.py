"""Locks in PostgreSQL beside other ways to lock there: `python -m benchmarks.database`.

    uv run --with django-pglock --with django-db-mutex python -m benchmarks.database

Without the peers they are left out. All contenders acquire and release one lock, in turn: in each
round every contender does the same number of pairs. The floor is a bare `INSERT … ON CONFLICT DO
UPDATE` and `UPDATE` on a connection of Django. A ratio to it is taken within a round, of medians;
the median over the rounds counts. Never compare absolute figures of two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import statistics
import threading
import time
from collections.abc import Callable

HOLDER = '{"host":"web1","pid":7,"path":"/orders/1/pay/"}'
NAME = "order:1"
BARE_TABLE = "CREATE TABLE bare (resource varchar(512) PRIMARY KEY, token text, ends timestamptz)"
BARE_TAKE = (
    "INSERT INTO bare VALUES (%s, %s, clock_timestamp() + interval '30 s') "
    "ON CONFLICT (resource) DO UPDATE SET token = excluded.token, ends = excluded.ends "
    "WHERE bare.ends <= clock_timestamp() RETURNING token"
)
BARE_RELEASE = "UPDATE bare SET ends = clock_timestamp() WHERE resource = %s AND token = %s"


def main() -> None:
    """Start PostgreSQL, measure, and print three tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.database")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--wakes", type=int, default=100)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ["SHOP_DATABASE"] = ":memory:"
    from tests.postgres import local_postgres

    peers = [name for name in ("pglock", "db_mutex") if importlib.util.find_spec(name)]
    with local_postgres() as entry:
        _setup(entry, peers)
        try:
            report_pairs(_contenders(peers), given.rounds, given.pairs)
            report_pairs(_transactions(peers), given.rounds, given.pairs)
            report_wakes(given.wakes)
        finally:
            from django.db import connections

            from redlock_django.locking.services import locks

            locks.close()
            connections["default"].close()


def _setup(entry: dict[str, object], peers: list[str]) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    settings.DATABASES = {"default": {**entry, "OPTIONS": {}}}
    settings.DATABASE_ROUTERS = []
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}
    settings.INSTALLED_APPS = ["redlock_django", *(name for name in peers if name == "db_mutex")]
    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(BARE_TABLE)


def _contenders(peers: list[str]) -> dict[str, Callable[[], object]]:
    """Return a function for each contender, which acquires and releases the lock."""
    from django.db import connection

    from redlock_django import lock
    from redlock_django.locking.services import locks

    backend, cursor = locks["default"].backend, connection.cursor()

    def bare() -> None:
        cursor.execute(BARE_TAKE, [NAME, "t"])
        assert cursor.fetchall()
        cursor.execute(BARE_RELEASE, [NAME, "t"])

    def store() -> None:
        backend.release(backend.acquire((NAME,), 30, 0, HOLDER))

    def whole() -> None:
        with lock(NAME):
            pass

    found: dict[str, Callable[[], object]] = {
        "bare INSERT + UPDATE": bare,
        "DatabaseBackend": store,
        "with lock()": whole,
    }
    loop = asyncio.new_event_loop()

    async def arun() -> None:
        await backend.arelease(await backend.aacquire((NAME,), 30, 0, HOLDER))

    # About 20 µs of it are the start and the end of the loop's run.
    found["DatabaseBackend, async"] = lambda: loop.run_until_complete(arun())
    if "pglock" in peers:
        from pglock import advisory

        def pglock() -> None:
            with advisory(NAME, timeout=0) as taken:
                assert taken

        found["django-pglock"] = pglock
    if "db_mutex" in peers:
        from db_mutex.db_mutex import db_mutex

        def mutex() -> None:
            with db_mutex(NAME):
                pass

        found["django-db-mutex"] = mutex
    return found


def _transactions(peers: list[str]) -> dict[str, Callable[[], object]]:
    """Return a function for each lock that is a transaction, which begins and commits it."""
    from django.db import connection, transaction

    from redlock_django import transaction_lock

    def bare() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(42)")
            assert cursor.fetchone() == (True,)

    def ours() -> None:
        with transaction_lock(NAME):
            pass

    found: dict[str, Callable[[], object]] = {
        "atomic() + pg_advisory": bare,
        "transaction_lock()": ours,
    }
    if "pglock" in peers:
        from pglock import advisory

        def pglock() -> None:
            with transaction.atomic():
                assert advisory(NAME, timeout=0, xact=True).acquire()

        found["django-pglock, xact"] = pglock
    return found


def report_pairs(contenders: dict[str, Callable[[], object]], rounds: int, pairs: int) -> None:
    """Print the time of a pair of each contender, and its ratio to the first one's."""
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, pair in contenders.items():
            for _ in range(20):
                pair()
            medians[name].append(statistics.median(_seconds(pair) for _ in range(pairs)))
    floor = next(iter(contenders))
    print(f"{'a pair, µs':24}{'median':>10}{'least':>10}{'x first':>10}")
    for name, found in medians.items():
        ratio = statistics.median(a / b for a, b in zip(found, medians[floor], strict=True))
        middle, least = statistics.median(found) * 1e6, min(found) * 1e6
        print(f"{name:24}{middle:10.0f}{least:10.0f}{ratio:10.2f}")


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report_wakes(wakes: int) -> None:
    """Print how long a waiter needs to hold a lock after its holder began to release it."""
    from redlock_django.locking.services import locks

    backend = locks["default"].backend
    took: list[float] = []
    for number in range(wakes):
        held = backend.acquire((NAME,), 30, 0, HOLDER)
        ended: list[float] = []

        def wait(ended: list[float] = ended) -> None:
            lease = backend.acquire((NAME,), 30, 20, HOLDER)
            ended.append(time.perf_counter())
            backend.release(lease)

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.06 if number else 1.0)  # until it waits; the first makes the process listen
        began = time.perf_counter()
        backend.release(held)
        waiter.join()
        took.append((ended[0] - began) * 1000)
    percentiles = statistics.quantiles(took, n=20)
    print(f"\na waiter is woken, ms: p50 {percentiles[9]:.1f}, p95 {percentiles[18]:.1f}")


if __name__ == "__main__":
    main()
