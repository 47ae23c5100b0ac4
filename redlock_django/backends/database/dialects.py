"""The statements of the database store that three databases do not have alike, and their parts.

Methods return a whole statement, for a number of resources, or an expression; `%s` is a value.
Times are µs since 1970 by the server's clock, in plain integers, so that all databases compute
alike.

A row of LOCKS stays when its lock ends, because the next fence must be higher; then `expires_at` is
the moment since which the resource is free. WAITERS has a row for every resource that a waiter
waits for.
"""

# ruff: noqa: B019 - each dialect is made once, or once for each cluster of PostgreSQL

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

LOCKS = "redlock_django_lock"
WAITERS = "redlock_django_waiter"
SERVERS = "redlock_django_server"
CHANNEL = "redlock_django"
"""The channel on which PostgreSQL notifies of locks that waiters wait for."""

SECOND = 1_000_000  # µs
_DIALECT = "redlock_dialect"  # an attribute of a connection


def marks(many: int) -> str:
    """Return the places of so many values in a statement."""
    return ", ".join(["%s"] * many)


class Dialect:
    """The statements for SQLite, and what PostgreSQL and MariaDB have in common with it.

    `now` is the time at which the expression is evaluated, or at which its statement began; a
    statement may wait for a row in between. A time that is too early refuses a lock that has just
    ended, and starts a lease no earlier than its client counts it from.
    """

    now: ClassVar[str] = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    began: ClassVar[str] = now  # the time at which the statement began, where that differs
    greatest: ClassVar[str] = "max"
    least: ClassVar[str] = "min"
    name: ClassVar[str] = f"substr({LOCKS}.resource, 1, instr({LOCKS}.resource || '[', '[') - 1)"
    """The name of which a row of LOCKS is a slot: all before the first bracket."""

    kept: ClassVar[str] = ""  # an expression that makes the commit of its statement durable
    takes_all: ClassVar[bool] = False
    """True if `take_all` takes all locks or none; otherwise that needs a transaction."""

    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    notifies: ClassVar[bool] = False
    is_durable: ClassVar[str] = ""
    """An expression that is false if a crash may forget locks; "" if none does."""

    ran_for: ClassVar[str] = ""
    """The statement whose last column is the seconds since the server started or recovered."""

    def __init__(self, identity: str = "") -> None:
        """`identity` is an expression for the identity of the server's data, or "".

        A failover changes it. It is NULL on a standby, whose locks its primary does not know.
        """
        self.identity = identity

    def trusted(self, number: str) -> str:
        """Return an expression for a number, which is NULL unless the server is trusted."""
        if not self.identity:
            return number
        return (
            f"(SELECT {number} FROM {SERVERS} WHERE id = 1 AND identity = {self.identity} "
            f"AND ready_at <= {self.now})"
        )

    @property
    def ahead(self) -> str:
        """The number of living waiters that came before, of which at most some count.

        Its values: how many count, the time of arrival, the name.
        """
        return f"""{self.least}(%s, (SELECT count(*) FROM {WAITERS} AS ahead
        WHERE ahead.resource = {self.name} AND ahead.alive_until > {self.now}
        AND (ahead.arrived_at, ahead.name) < (%s, %s)))"""

    @property
    def free(self) -> str:
        """The condition that a lock is free, and not reserved. Values: a turn, those of `ahead`.

        A released lock that ends in the future was released before the clock was set back.
        """
        return f"""{LOCKS}.expires_at + %s * {self.ahead} <= {self.now}
    OR {LOCKS}.token_hash = '' AND {LOCKS}.expires_at > {self.now}"""

    def rows(self, many: int) -> str:
        """Return the rows to take: resource, hash of the token, holder and TTL of each.

        The fence is NULL unless the server that runs the statement is trusted, and its column is
        not nullable. So a pooler, a proxy or a promotion may change the server at any time.
        """
        return ", ".join([f"(%s, %s, %s, {self.trusted(self.now)}, {self.now} + %s)"] * many)

    def insert(self, rows: str) -> str:
        """Return the statement that takes those of some rows that are free, and returns them.

        A lock is free for its own token, so that the statement can be repeated where its answer was
        lost.
        """
        return f"""
INSERT INTO {LOCKS} (resource, token_hash, holder, fence, expires_at)
{rows}
ON CONFLICT (resource) DO UPDATE SET token_hash = excluded.token_hash, holder = excluded.holder,
    fence = {self.greatest}({LOCKS}.fence + 1, excluded.fence), expires_at = excluded.expires_at
WHERE {LOCKS}.token_hash = excluded.token_hash OR {self.free}
RETURNING resource, fence, token_hash"""

    @cache
    def take(self, many: int) -> str:
        """Take those of the locks that are free. Values: those of `rows`, then of `free`."""
        return self.insert(f"VALUES {self.rows(many)}")

    def take_all(self, many: int, leaves: bool) -> str:
        """Take all locks or none, and if it took them, leave the queues.

        Values: the resources, the hash of the token, those of `free`, of `rows` and of `free`, and
        if it leaves, the name of the waiter. It fails if a lock ends meanwhile.
        """
        raise NotImplementedError

    @cache
    def swap(self, many: int) -> str:
        """Replace a token, for a TTL; NULL as the fence as in `rows`.

        Values: the new hash, the holder, the TTL, the resources, two hashes that are replaced.
        """
        return f"""
UPDATE {LOCKS} SET token_hash = %s, holder = %s, fence = {self.trusted(f"{LOCKS}.fence")},
    expires_at = {self.now} + %s
WHERE resource IN ({marks(many)}) AND token_hash IN (%s, %s) AND expires_at > {self.now}
{self.returning(self.kept)}"""

    def returning(self, expression: str) -> str:
        """Return the end of an UPDATE of LOCKS that evaluates an expression in each row."""
        return f"RETURNING {expression}" if expression else ""

    def called(self, siblings: int = 0) -> str:
        """Return an expression that calls the first waiters for a row of LOCKS; "" if none does.

        A slot has `siblings`: other waiters were called for those that were released just before.
        Values: the siblings and for how long back, if there are any.
        """
        return ""

    @cache
    def join(self, many: int) -> str:
        """Join queues, and return the time of arrival. Values of each: name, resource, seconds."""
        rows = ", ".join([f"(%s, %s, {self.began}, {self.began} + %s)"] * many)
        return f"""
INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) VALUES {rows}
ON CONFLICT (resource, name) DO UPDATE SET arrived_at = excluded.arrived_at,
    alive_until = excluded.alive_until
RETURNING arrived_at"""

    def recognize(self) -> str:
        """Store the identity, and if it changed, that it is distrusted for a time: the value."""
        return f"""
INSERT INTO {SERVERS} (id, identity, ready_at) VALUES (1, {self.identity}, 0)
ON CONFLICT (id) DO UPDATE SET identity = excluded.identity, ready_at = {self.now} + %s
WHERE {SERVERS}.identity <> excluded.identity"""


class PostgreSQL(Dialect):
    """The statements for PostgreSQL."""

    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    began = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
    greatest, least = "GREATEST", "LEAST"
    name = f"split_part({LOCKS}.resource, '[', 1)"
    # Without it, synchronous_commit = off lets a crash of the server forget a lock that is held.
    # It is local to the transaction, which is the statement, so it works behind a pooler.
    kept = (
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
        "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
    )
    takes_all = True
    notifies = True
    # A crash empties UNLOGGED tables, and begins all statistics again. A clean restart keeps both.
    is_durable = (
        f"NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('{LOCKS}') "
        "AND relpersistence = 'u')"
    )
    ran_for = "SELECT extract(epoch FROM clock_timestamp() - stats_reset) FROM pg_stat_archiver"

    def __init__(
        self, cluster: str = "(SELECT system_identifier FROM pg_control_system())::text"
    ) -> None:
        """`cluster` is an expression for the cluster."""
        # With its timeline: a promoted replica and a restored backup begin a new one.
        super().__init__(
            f"CASE WHEN NOT pg_is_in_recovery() THEN {cluster} || ':' || "
            "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END"
        )

    def insert(self, rows: str) -> str:
        """Return the statement that takes the rows that are free, durably."""
        return f"{super().insert(rows)}, {self.kept}"

    @cache
    def take_all(self, many: int, leaves: bool) -> str:
        """Take all locks by a statement that divides by 0, so changes nothing, if it took fewer.

        It begins with a look, so that this is rare.
        """
        wanted = f"SELECT * FROM (VALUES {self.rows(many)}) AS wanted"
        taken = self.insert(f"{wanted} WHERE NOT EXISTS (SELECT FROM blocked)")
        left = f"DELETE FROM {WAITERS} WHERE name = %s AND EXISTS (SELECT FROM taken)"
        return f"""
WITH blocked AS (
    SELECT FROM {LOCKS}
    WHERE resource IN ({marks(many)}) AND NOT (token_hash = %s OR {self.free})
), taken (resource, fence, token_hash, kept) AS ({taken}
){f", gone AS ({left})" if leaves else ""}
SELECT resource, fence, token_hash, 1 / (count(*) OVER () / {many}) FROM taken"""

    @cache
    def called(self, siblings: int = 0) -> str:
        """Notify of the names of the first two waiters, and of `[2]` if the row is slot 2."""
        # A notification costs all commits of the server a common lock: only where a waiter exists.
        skipped = f"""(SELECT count(*) FROM {LOCKS} AS sibling WHERE resource IN ({marks(siblings)})
        AND expires_at <= {self.now} AND expires_at > {self.now} - %s)"""
        return f"""
    (SELECT pg_notify('{CHANNEL}', string_agg(name, ' ' ORDER BY arrived_at, name) ||
     replace(substr({LOCKS}.resource, length({self.name}) + 1), '[', ' ['))
     FROM (SELECT name, arrived_at FROM {WAITERS} AS waiter
           WHERE waiter.resource = {self.name} AND waiter.alive_until > {self.now}
           ORDER BY arrived_at, name LIMIT 2 OFFSET {skipped if siblings else 0}) AS called
     HAVING count(*) > 0)"""


class MariaDB(Dialect):
    """The statements for MariaDB, which returns the rows that it did not change, too."""

    # Not of the time zone of the session, which may have hours that occur twice.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    began = now
    greatest, least = "GREATEST", "LEAST"
    name = f"SUBSTRING_INDEX({LOCKS}.resource, '[', 1)"
    begin = "START TRANSACTION"
    is_durable = "@@innodb_flush_log_at_trx_commit = 1"
    ran_for = "SHOW GLOBAL STATUS LIKE 'Uptime'"

    def __init__(self) -> None:
        # Replicas have other numbers. Those of two servers that are not replicated may be equal.
        # Newer versions have words for `read_only`. A user with all rights may write nevertheless.
        super().__init__(
            "IF(CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF'), "
            "CONCAT(@@server_id, ':', @@hostname, ':', @@port), NULL)"
        )

    def insert(self, rows: str) -> str:
        """Return the statement that takes the rows that are free."""
        # Assignments are made in this order: the ones that follow the first see its result.
        return f"""
INSERT INTO {LOCKS} (resource, token_hash, holder, fence, expires_at)
{rows}
ON DUPLICATE KEY UPDATE
    token_hash = IF(token_hash = VALUES(token_hash) OR {self.free}, VALUES(token_hash), token_hash),
    holder = IF(token_hash = VALUES(token_hash), VALUES(holder), holder),
    fence = IF(token_hash = VALUES(token_hash), GREATEST(fence + 1, VALUES(fence)), fence),
    expires_at = IF(token_hash = VALUES(token_hash), VALUES(expires_at), expires_at)
RETURNING resource, fence, token_hash"""

    def returning(self, expression: str) -> str:
        """Return nothing: there is no expression to evaluate."""
        return ""

    @cache
    def join(self, many: int) -> str:
        """Join queues, and return the time of arrival."""
        rows = ", ".join([f"(%s, %s, {self.now}, {self.now} + %s)"] * many)
        return f"""
INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) VALUES {rows}
ON DUPLICATE KEY UPDATE arrived_at = VALUES(arrived_at), alive_until = VALUES(alive_until)
RETURNING arrived_at"""

    def recognize(self) -> str:
        """Store the identity, and if it changed, that it is distrusted for a time."""
        return f"""
INSERT INTO {SERVERS} (id, identity, ready_at) VALUES (1, {self.identity}, 0)
ON DUPLICATE KEY UPDATE
    ready_at = IF(identity <> VALUES(identity), {self.now} + %s, ready_at),
    identity = VALUES(identity)"""


DIALECTS = {"postgresql": PostgreSQL(), "sqlite": Dialect(), "mysql": MariaDB()}
"""The dialect of each vendor, as Django names it."""


def dialect_of(cursor: CursorWrapper) -> Dialect:
    """Return the dialect of the database that a cursor belongs to."""
    dialect: Dialect = getattr(cursor.db, _DIALECT, DIALECTS[cursor.db.vendor])
    return dialect


def ignore_identity(cursor: CursorWrapper) -> None:
    """Make `dialect_of` return a dialect without `identity` for the connection of a cursor."""
    setattr(cursor.db, _DIALECT, _anonymous(cursor.db.vendor))


@cache
def _anonymous(vendor: str) -> Dialect:
    dialect = type(DIALECTS[vendor])()
    dialect.identity = ""
    return dialect


def keep_cluster(cursor: CursorWrapper, identity: str) -> None:
    """Make `dialect_of` return a dialect that knows the cluster of PostgreSQL for a connection.

    A connection without a pooler in between leads to one server, whose cluster stays the same;
    only its timeline may change. To read the cluster takes as long as all else of the statement.
    """
    cluster = identity.partition(":")[0]
    if cluster.isdigit():
        setattr(cursor.db, _DIALECT, _of_cluster(cluster))


@cache
def _of_cluster(cluster: str) -> Dialect:
    return PostgreSQL(f"'{cluster}'")


# The numbers of errors of MariaDB that have an SQLSTATE of their own elsewhere: a deadlock, a lock
# that was waited for too long, a row that changed meanwhile, a missing table or column, a NULL.
_MARIADB_STATES = {
    1213: "40P01", 1205: "40001", 1020: "40001", 1146: "42P01", 1054: "42703", 1048: "23502"
}  # fmt: skip


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a database error as PostgreSQL has it, "" if it has none."""
    cause: Any = error.__cause__ or error  # Django raises errors of MariaDB of its own, too
    arguments = getattr(cause, "args", ())
    if arguments and arguments[0] in _MARIADB_STATES:
        return _MARIADB_STATES[arguments[0]]
    # psycopg 3 and psycopg2 name it differently.
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


def text(value: str | bytes) -> str:
    """Return a string of the database, which is binary on MariaDB so that all names differ."""
    return value.decode() if isinstance(value, bytes) else value
