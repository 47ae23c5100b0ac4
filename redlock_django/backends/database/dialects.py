"""The expressions and statements in which the databases of locks differ.

Times are µs since 1970 by the server's clock, in plain integers, so that all databases compute
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

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

    `now` is the time at which the expression is evaluated, or at which its statement began; a
    statement may wait for a row in between. A time that is too early refuses a lock that has just
    ended, and starts a lease no earlier than its client counts it from.
    """

    now: str
    greatest: str = "GREATEST"
    least: str = "LEAST"
    contains: str
    name: str
    """The name of which a row of {locks} is a slot: all before the first bracket."""

    take: str
    """The statement that takes the `rows`; a lock is free for its own token, so that the statement
    can be repeated where its answer was lost. A released lock that ends in the future was released
    before the clock was set back."""

    take_all: str = ""
    """The statement that takes all locks or none, and with `left` leaves the queues; "" if that
    needs a transaction, which begins with `begin`. It fails if a lock ends meanwhile."""

    taken: str = ""
    """The statement that reads the rows, where `take` does not return them."""

    join: str
    """The statement that joins the queues, and returns the time of arrival."""

    joined: str = ""
    """The statement that reads the time of arrival, where `join` does not return it."""

    began: str = ""
    """The time at which the statement began, if that differs from `now`."""

    recognize: str
    """The statement that stores the identity, and if it changed, until when it is distrusted."""

    kept: str = ""
    """An expression that makes the commit of its statement durable."""

    notified: str = ""
    """An expression that calls the first waiters for a row of {locks}, if there are any: their
    names, and `[2]` if the row is slot 2."""

    identity: str = ""
    """An expression for the identity of the server's data, which a failover changes; or "".

    It is NULL on a standby, whose locks its primary does not know."""

    is_durable: str = ""
    """An expression that is false if a crash may forget locks; "" if none does."""

    ran_for: str = ""
    """The statement whose last column is the seconds since the server started or recovered."""

    begin: str = ""
    """The statement that begins a transaction."""

    @cache  # noqa: B019 - there are three dialects
    def sql(self, statement: str, resources: int = 0, rows: str = "", siblings: int = 0) -> str:
        """Return a statement of this dialect, for a number of resources or of `rows`.

        One that releases a slot is for a number of `siblings`, all slots of its name.
        """
        others = ", ".join(["%s"] * siblings)
        notified = self.notified.replace("{skipped}", f"({_CALLED})" if siblings else "0")
        notified = notified.replace("{siblings}", others).format(name=self.name, now=self.now)
        return statement.format(
            locks=LOCKS,
            waiters=WAITERS,
            servers=SERVERS,
            identity=self.identity,
            now=self.now,
            began=self.began or self.now,
            greatest=self.greatest,
            least=self.least,
            kept=f"RETURNING {self.kept}" if self.kept else "",
            called=notified,
            notified=f"RETURNING {notified}" if notified else "",
            name=self.name,
            contains=self.contains,
            resources=", ".join(["%s"] * resources),
            # The number of living waiters that came before, of which at most some count.
            ahead=(
                f"{self.least}(%s, (SELECT count(*) FROM {WAITERS} AS ahead WHERE "
                f"ahead.resource = {self.name} AND ahead.alive_until > {self.now} AND "
                "(ahead.arrived_at, ahead.name) < (%s, %s)))"
            ),
            fence=self._trusted("{locks}.fence") if "{fence}" in statement else "",
            rows=rows,
        )

    def _trusted(self, number: str) -> str:
        """Return an expression for a number, which is NULL unless the server is trusted."""
        if not self.identity:
            return self.sql(number)
        return self.sql(
            f"(SELECT {number} FROM {{servers}} WHERE id = 1 AND identity = {{identity}} "
            "AND ready_at <= {now})"
        )

    @cache  # noqa: B019 - as above
    def sql_of_take(self, resources: int, leaves: bool = False) -> str:
        """Return the statement that takes so many resources, for their values one after another.

        `leaves` is True for a waiter. The fence is NULL unless the server that runs the statement
        is trusted, and its column is not nullable. So a pooler, a proxy or a promotion may change
        the server at any time.
        """
        fence = self._trusted("{now}")
        rows = ", ".join([f"(%s, %s, %s, {fence}, {self.now} + %s)"] * resources)
        if not self.take_all or (resources == 1 and not leaves):
            return self.sql(self.take, rows=rows)
        statement = self.take_all.replace("{left}", _LEFT if leaves else "")
        return self.sql(statement.replace("{many}", str(resources)), resources, rows=rows)


_ROWS = "INSERT INTO {locks} (resource, token_hash, holder, fence, expires_at)"
_FREE = """{locks}.expires_at + %s * {ahead} <= {now}
    OR {locks}.token_hash = '' AND {locks}.expires_at > {now}"""
_TAKEN = f"""
ON CONFLICT (resource) DO UPDATE SET token_hash = excluded.token_hash, holder = excluded.holder,
    fence = {{greatest}}({{locks}}.fence + 1, excluded.fence), expires_at = excluded.expires_at
WHERE {{locks}}.token_hash = excluded.token_hash OR {_FREE}
RETURNING resource, fence, token_hash"""
_CALLED = f"""SELECT count(*) FROM {LOCKS} AS sibling WHERE resource IN ({{siblings}})
    AND expires_at <= {{now}} AND expires_at > {{now}} - %s"""
_LEFT = ", gone AS (DELETE FROM {waiters} WHERE name = %s AND EXISTS (SELECT FROM taken))"

_JOIN = """
INSERT INTO {waiters} (name, resource, arrived_at, alive_until) VALUES {rows}
ON CONFLICT (resource, name) DO UPDATE SET arrived_at = excluded.arrived_at,
    alive_until = excluded.alive_until
RETURNING arrived_at"""

_RECOGNIZE = """
INSERT INTO {servers} (id, identity, ready_at) VALUES (1, {identity}, 0)
ON CONFLICT (id) DO UPDATE SET identity = excluded.identity, ready_at = {now} + %s
WHERE {servers}.identity <> excluded.identity"""

# Without it, synchronous_commit = off lets a crash of the server forget a lock that is held.
# It is local to the transaction, which is the statement, so it works behind a pooler.
_POSTGRESQL_KEPT = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
)

_POSTGRESQL_IDENTITY = (
    "CASE WHEN NOT pg_is_in_recovery() THEN {cluster} || ':' || "
    "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"
)

_POSTGRESQL_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

POSTGRESQL = Dialect(
    now=_POSTGRESQL_NOW,
    contains="strpos(resource, %s) > 0",
    name=f"split_part({LOCKS}.resource, '[', 1)",
    take=f"{_ROWS} VALUES {{rows}} {_TAKEN}, {_POSTGRESQL_KEPT}",
    # A statement that fails changes nothing: it divides by 0 if it could not take all locks. It
    # begins with a look, so that this is rare.
    take_all=f"""
WITH blocked AS (
    SELECT FROM {{locks}} WHERE resource IN ({{resources}}) AND NOT (token_hash = %s OR {_FREE})
), taken (resource, fence, token_hash, kept) AS (
    {_ROWS} SELECT * FROM (VALUES {{rows}}) AS wanted WHERE NOT EXISTS (SELECT FROM blocked)
    {_TAKEN}, {_POSTGRESQL_KEPT}
){{left}}
SELECT resource, fence, token_hash, 1 / (count(*) OVER () / {{many}}) FROM taken""",
    join=_JOIN,
    began="(extract(epoch FROM statement_timestamp()) * 1000000)::bigint",
    recognize=_RECOGNIZE,
    kept=_POSTGRESQL_KEPT,
    # The cluster, and its timeline: a promoted replica and a restored backup begin a new one.
    identity=_POSTGRESQL_IDENTITY.format(
        cluster="(SELECT system_identifier FROM pg_control_system())::text"
    ),
    # A crash empties UNLOGGED tables, and begins all statistics again. A clean restart keeps both.
    is_durable=(
        f"NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('{LOCKS}') "
        "AND relpersistence = 'u')"
    ),
    ran_for="SELECT extract(epoch FROM clock_timestamp() - stats_reset) FROM pg_stat_archiver",
    # A notification costs all commits of the server a common lock: only where a waiter exists.
    notified=(
        f"(SELECT pg_notify('{CHANNEL}', string_agg(name, ' ' ORDER BY arrived_at, name) || "
        f"replace(substr({LOCKS}.resource, length({{name}}) + 1), '[', ' [')) FROM "
        f"(SELECT name, arrived_at FROM {WAITERS} AS waiter WHERE waiter.resource = "
        "{name} AND waiter.alive_until > {now} ORDER BY arrived_at, name LIMIT 2 "
        "OFFSET {skipped}) AS called HAVING count(*) > 0)"
    ),
)
SQLITE = Dialect(
    now="CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    greatest="max",
    least="min",
    contains="instr(resource, %s) > 0",
    name=f"substr({LOCKS}.resource, 1, instr({LOCKS}.resource || '[', '[') - 1)",
    take=f"{_ROWS} VALUES {{rows}} {_TAKEN}",
    join=_JOIN,
    recognize=_RECOGNIZE,
    begin="BEGIN IMMEDIATE",
)
MYSQL = Dialect(
    # Not of the time zone of the session, which may have hours that occur twice.
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    contains="LOCATE(%s, resource) > 0",
    name=f"SUBSTRING_INDEX({LOCKS}.resource, '[', 1)",
    # Assignments are made in this order: the ones that follow the first see its result.
    take="""
INSERT INTO {locks} (resource, token_hash, holder, fence, expires_at) VALUES {rows}
ON DUPLICATE KEY UPDATE
    token_hash = IF(token_hash = VALUES(token_hash) OR expires_at + %s * {ahead} <= {now}
        OR token_hash = '' AND expires_at > {now}, VALUES(token_hash), token_hash),
    holder = IF(token_hash = VALUES(token_hash), VALUES(holder), holder),
    fence = IF(token_hash = VALUES(token_hash), GREATEST(fence + 1, VALUES(fence)), fence),
    expires_at = IF(token_hash = VALUES(token_hash), VALUES(expires_at), expires_at)""",
    taken="SELECT resource, fence, token_hash FROM {locks} WHERE resource IN ({resources})",
    join="""
INSERT INTO {waiters} (name, resource, arrived_at, alive_until) VALUES {rows}
ON DUPLICATE KEY UPDATE arrived_at = VALUES(arrived_at), alive_until = VALUES(alive_until)""",
    joined="SELECT arrived_at FROM {waiters} WHERE name = %s",
    recognize="""
INSERT INTO {servers} (id, identity, ready_at) VALUES (1, {identity}, 0)
ON DUPLICATE KEY UPDATE ready_at = IF(identity <> VALUES(identity), {now} + %s, ready_at),
    identity = VALUES(identity)""",
    # Replicas have other numbers. Those of two servers that are not replicated may be equal.
    # Newer versions have words for `read_only`. A user with all rights may write nevertheless.
    identity=(
        "IF(CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF'), "
        "CONCAT(@@server_id, ':', @@hostname, ':', @@port), NULL)"
    ),
    is_durable="@@innodb_flush_log_at_trx_commit = 1",
    ran_for="SHOW GLOBAL STATUS LIKE 'Uptime'",
    begin="START TRANSACTION",
)
# It returns the rows that it did not change, too.
MARIADB = replace(
    MYSQL,
    take=f"{MYSQL.take} RETURNING resource, fence, token_hash",
    taken="",
    join=f"{MYSQL.join} RETURNING arrived_at",
    joined="",
)
DIALECTS = {"postgresql": POSTGRESQL, "sqlite": SQLITE, "mysql": MYSQL}
"""The dialect of each vendor, as Django names it."""

SQLITE_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {LOCKS} (
    resource TEXT NOT NULL PRIMARY KEY, token_hash TEXT NOT NULL, holder TEXT NOT NULL,
    fence INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS {WAITERS} (
    name TEXT NOT NULL, resource TEXT NOT NULL,
    arrived_at INTEGER NOT NULL, alive_until INTEGER NOT NULL, PRIMARY KEY (resource, name)
)""".split(";")

MYSQL_SESSION = (
    # In other modes a value that is too long is cut off, and a table may get another engine.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION innodb_lock_wait_timeout = {seconds}",
)


def dialect_of(cursor: CursorWrapper) -> Dialect:
    """Return the dialect of the database that a cursor belongs to."""
    dialect: Dialect = getattr(cursor.db, _DIALECT, DIALECTS[cursor.db.vendor])
    return dialect


def recognize_mariadb(cursor: CursorWrapper) -> None:
    """Make `dialect_of` return that of MariaDB for the connection of a cursor, if it is one."""
    if getattr(cursor.db, "mysql_is_mariadb", False):
        setattr(cursor.db, _DIALECT, MARIADB)


def ignore_identity(cursor: CursorWrapper) -> None:
    """Make `dialect_of` return a dialect without `identity` for the connection of a cursor."""
    setattr(cursor.db, _DIALECT, replace(dialect_of(cursor), identity=""))


def is_direct(cursor: CursorWrapper) -> bool:
    """Return whether a connection of psycopg 3 leads to one server of PostgreSQL.

    A pooler may change the server at any time. `settings` makes this difference.
    """
    return getattr(cursor.db.connection, "prepare_threshold", None) == 0


def keep_cluster(cursor: CursorWrapper, identity: str) -> None:
    """Make `dialect_of` return a dialect that knows the cluster of PostgreSQL for a connection.

    A connection without a pooler in between leads to one server, whose cluster stays the same;
    only its timeline may change. To read the cluster takes as long as all else of the statement.
    """
    cluster = identity.partition(":")[0]
    if cluster.isdigit():
        setattr(cursor.db, _DIALECT, _of_cluster(dialect_of(cursor), cluster))


@cache
def _of_cluster(dialect: Dialect, cluster: str) -> Dialect:
    return replace(dialect, identity=_POSTGRESQL_IDENTITY.format(cluster=f"'{cluster}'"))


_DIALECT = "redlock_dialect"  # an attribute of a connection


# The numbers of errors of MySQL that have an SQLSTATE of their own elsewhere: a deadlock, a lock
# that was waited for too long, a row that changed meanwhile (MariaDB), a missing table or column,
# a NULL.
_MYSQL_STATES = {
    1213: "40P01", 1205: "40001", 1020: "40001", 1146: "42P01", 1054: "42703", 1048: "23502"
}  # fmt: skip


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a database error as PostgreSQL has it, "" if it has none."""
    cause: Any = error.__cause__ or error  # Django raises errors of MySQL of its own, too
    arguments = getattr(cause, "args", ())
    if arguments and arguments[0] in _MYSQL_STATES:
        return _MYSQL_STATES[arguments[0]]
    # psycopg 3 and psycopg2 name it differently.
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


def text(value: str | bytes) -> str:
    """Return a string of the database, which is binary on MySQL so that all names differ."""
    return value.decode() if isinstance(value, bytes) else value
