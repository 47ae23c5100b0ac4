"""The expressions and statements in which the databases of locks differ.

Times are µs since 1970 by the server's clock, in plain integers, so that all databases compute
alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

LOCKS = "redlock_django_lock"
WAITERS = "redlock_django_waiter"
SERVERS = "redlock_django_server"
CHANNEL = "redlock_django"
"""The channel on which PostgreSQL notifies of locks that waiters wait for."""

SECOND = 1_000_000  # µs


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The expressions and statements in which databases differ.

    `now` is the time at which the expression is evaluated; a statement may wait for a row before.
    `kept` is an expression that makes the commit of its statement durable.
    """

    product: str
    now: str
    greatest: str
    least: str
    contains: str
    kept: str
    identity: str
    """An expression for the identity of the server's data, which a failover changes; or ""."""

    notified: str
    """An expression that wakes the waiters for a row of {locks}, if there are any."""

    all_or_none: bool
    """True if one statement takes several locks or none; otherwise a transaction does."""

    @cache  # noqa: B019 - there are two dialects
    def sql(self, statement: str, resources: int = 0, rows: str = "") -> str:
        """Return a statement of this dialect, for a number of resources or of `rows`."""
        return statement.format(
            locks=LOCKS,
            waiters=WAITERS,
            servers=SERVERS,
            now=self.now,
            greatest=self.greatest,
            least=self.least,
            kept=self.kept,
            notified=self.notified,
            contains=self.contains,
            resources=", ".join(["%s"] * resources),
            # The number of living waiters that came before, of which at most some count.
            ahead=(
                f"{self.least}(%s, (SELECT count(*) FROM {WAITERS} AS ahead WHERE "
                f"ahead.resource = held.resource AND ahead.alive_until > {self.now} AND "
                "(ahead.arrived_at, ahead.name) < (%s, %s)))"
            ),
            rows=rows,
        )


POSTGRESQL = Dialect(
    product="PostgreSQL",
    now="(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    greatest="GREATEST",
    least="LEAST",
    contains="strpos(resource, %s) > 0",
    # Without it, synchronous_commit = off lets a crash of the server forget a lock that is held.
    # It is local to the transaction, which is the statement, so it works behind a pooler.
    kept=(
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
        "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
    ),
    # The cluster, and its timeline: a promoted replica and a restored backup begin a new one.
    identity=(
        "(SELECT system_identifier FROM pg_control_system())::text || ':' || "
        "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
    ),
    # A notification costs all commits of the server a common lock: only where a waiter exists.
    notified=(
        f"CASE WHEN EXISTS (SELECT FROM {WAITERS} AS waiter WHERE waiter.resource = "
        f"{LOCKS}.resource) THEN pg_notify('{CHANNEL}', resource) END"
    ),
    all_or_none=True,
)
SQLITE = Dialect(
    product="SQLite",
    now="CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    greatest="max",
    least="min",
    contains="instr(resource, %s) > 0",
    kept="0",
    identity="",
    notified="0",
    all_or_none=False,
)
DIALECTS = {"postgresql": POSTGRESQL, "sqlite": SQLITE}
"""The dialect of each vendor, as Django names it."""

SQLITE_SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS {LOCKS} (
    resource TEXT NOT NULL PRIMARY KEY, token_hash TEXT NOT NULL, holder TEXT NOT NULL,
    fence INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS {WAITERS} (
    name TEXT NOT NULL, resource TEXT NOT NULL,
    arrived_at INTEGER NOT NULL, alive_until INTEGER NOT NULL, PRIMARY KEY (resource, name)
)""".split(";")


def dialect_of(cursor: CursorWrapper) -> Dialect:
    """Return the dialect of the database that a cursor belongs to."""
    return DIALECTS[cursor.db.vendor]


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a database error, "" if it has none."""
    cause = error.__cause__
    # psycopg 3 and psycopg2 name it differently.
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
