"""The settings of the database store, and the connections that it makes from them."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import OperationalError, load_backend

from redlock_django.backends.base import Section, StoreSettings
from redlock_django.backends.database.dialects import (
    DIALECTS,
    LOCKS,
    WAITERS,
    Dialect,
)
from redlock_django.backends.database.trust import only_in
from redlock_django.backends.values import LONGEST_WAIT, SHORTEST_TTL, seconds, string

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper


PATIENCE = 4
"""The multiple of DATABASE_TIMEOUT after which a connection without an answer is replaced."""

_WAL_PAUSE = 0.005  # seconds

_SQLITE_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {LOCKS} (
    resource TEXT NOT NULL PRIMARY KEY, token_hash TEXT NOT NULL, holder TEXT NOT NULL,
    fence INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS {WAITERS} (
    name TEXT NOT NULL, resource TEXT NOT NULL,
    arrived_at INTEGER NOT NULL, alive_until INTEGER NOT NULL, PRIMARY KEY (resource, name)
)""".split(";")

_MARIADB_SESSION = (
    # In other modes a value that is too long is cut off, and a table may get another engine.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION innodb_lock_wait_timeout = {seconds}",
)


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings(StoreSettings):
    """The settings of locks in a database: which one, and how it is asked."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **StoreSettings.DEFAULTS,
        "DATABASE": "default",
        "DATABASE_TIMEOUT": 2,
        "CONNECTIONS": 4,
        "POLL": 0.05,
    }

    database: str
    database_timeout: float = 2.0
    connections: int = 4
    poll: float = 0.05
    longest_ttl: float = 60.0
    """The longest MAX_TTL of all aliases with locks in this database: they share its trust."""

    @classmethod
    def read(cls, section: Section) -> Self:
        alias = string(section, "DATABASE")
        _check_database(alias)
        many = section["CONNECTIONS"]
        if isinstance(many, bool) or not isinstance(many, int) or not 1 <= many <= 100:
            raise ValueError(f"CONNECTIONS must be a number from 1 to 100, got {many!r}")
        max_ttl = seconds(section, "MAX_TTL", least=SHORTEST_TTL)
        return cls(
            max_ttl=max_ttl,
            longest_ttl=max(max_ttl, *_ttls_of_others(section)),
            database=alias,
            database_timeout=seconds(section, "DATABASE_TIMEOUT", least=0.1, most=LONGEST_WAIT),
            connections=many,
            poll=seconds(section, "POLL", least=0.005, most=LONGEST_WAIT),
        )

    @property
    def identity(self) -> str:
        return f"database {self.database}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.database,)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        return DIALECTS[connections[self.database].vendor]

    @property
    def is_in_memory(self) -> bool:
        """True if the database is SQLite in memory, as in the tests of a site."""
        connection = connections[self.database]
        return connection.vendor == "sqlite" and connection.is_in_memory_db()  # type: ignore[attr-defined]

    @property
    def sqlite_file(self) -> str:
        """The file that has the locks: on SQLite one of their own, elsewhere "".

        A writer of SQLite excludes all other writers of its file. In the file of the data, a
        renewal would wait for the transaction that the lock is held for. A database in memory
        belongs to one process; its locks are in a temporary file of that process.
        """
        connection = connections[self.database]
        if connection.vendor != "sqlite":
            return ""
        name = str(connection.settings_dict["NAME"])
        if self.is_in_memory:
            return _temporary_file(self.database, name)
        return os.path.realpath(name) + ".locks"

    @property
    def most_connections(self) -> int:
        """The number of connections of the process: SQLite has only one writer at a time."""
        return 1 if self.sqlite_file else self.connections

    def connect(self) -> BaseDatabaseWrapper:
        """Return a new connection in autocommit that no request uses.

        The settings in DATABASES for transactions, isolation and pools are for requests.
        """
        given = connections[self.database].settings_dict
        changed = {"AUTOCOMMIT": True, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
        wanted = {**given, **changed, "OPTIONS": self._options(given["OPTIONS"])}
        if file := self.sqlite_file:
            wanted["NAME"] = file
        wrapper: BaseDatabaseWrapper = load_backend(given["ENGINE"]).DatabaseWrapper(
            wanted, self.database
        )
        try:
            _prepare_session(wrapper, self.database_timeout)
        except BaseException:
            with suppress(Exception):
                wrapper.close()
            raise
        if file:
            wrapper.execute_wrappers.append(only_in(file))
        return wrapper

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if self.sqlite_file:
            return {"timeout": self.database_timeout}
        options = dict(given)
        for name in ("pool", "isolation_level", "server_side_binding", "prepare_threshold"):
            options.pop(name, None)
        options.setdefault("connect_timeout", max(2, round(self.database_timeout)))
        if connections[self.database].vendor == "mysql":
            # Longer than the server lets a statement wait for a row.
            limit = 2 * math.ceil(self.database_timeout)
            options |= {"charset": "utf8mb4", "read_timeout": limit, "write_timeout": limit}
            # As Django sets it: an UPDATE counts the rows that it found.
            options["client_flag"] = options.get("client_flag", 0) | _FOUND_ROWS
            return options
        if is_psycopg3():
            options["server_side_binding"] = True  # only such statements can be prepared
        # Otherwise a host that vanished is noticed after a quarter of an hour, and one that owes an
        # answer or a notification after two hours.
        options.setdefault("tcp_user_timeout", round(1000 * PATIENCE * self.database_timeout))
        options.setdefault("keepalives_idle", math.ceil(self.database_timeout))
        options.setdefault("keepalives_interval", math.ceil(self.database_timeout))
        return options


def _ttls_of_others(section: Section) -> list[float]:
    """Return the MAX_TTL of the aliases whose locks are in the same database; 0.0 is among them."""
    found, wanted = [0.0], (section["BACKEND"], section["DATABASE"])
    for other in settings.REDLOCK.values():
        if isinstance(other, Mapping):
            whole = {**DatabaseSettings.DEFAULTS, **other}
            ttl = whole["MAX_TTL"]
            if (whole.get("BACKEND"), whole["DATABASE"]) == wanted and isinstance(ttl, int | float):
                found.append(float(ttl))
    return found


def _use_wal(cursor: CursorWrapper, timeout: float) -> None:
    """Write changes ahead, so that readers of the file do not wait for its writer.

    To change this, SQLite does not wait for another connection: it fails at once if, for instance,
    another process makes the same new file at this moment.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except OperationalError as error:
            code: int = getattr(error.__cause__, "sqlite_errorcode", 0)
            is_busy = code & 0xFF == sqlite3.SQLITE_BUSY  # or one of its extended codes
            if not is_busy or time.monotonic() >= deadline:
                raise
        time.sleep(_WAL_PAUSE)


def _prepare_session(wrapper: BaseDatabaseWrapper, timeout: float) -> None:
    wrapper.ensure_connection()
    if wrapper.vendor == "mysql" and not wrapper.mysql_is_mariadb:  # type: ignore[attr-defined]
        raise OperationalError(f"{wrapper.alias!r} is MySQL, not MariaDB: it keeps no locks")
    first = {"sqlite": _SQLITE_SCHEMA, "mysql": _MARIADB_SESSION}.get(wrapper.vendor, ())
    with wrapper.cursor() as cursor:
        if wrapper.vendor == "sqlite":
            _use_wal(cursor, timeout)
        for statement in first:
            cursor.execute(statement.format(seconds=math.ceil(timeout)))


def is_psycopg3() -> bool:
    """Return whether Django uses psycopg 3, and not psycopg2."""
    from django.db.backends.postgresql import psycopg_any

    return bool(psycopg_any.is_psycopg3)


def prepare_statements(cursor: CursorWrapper) -> None:
    """Make a server of PostgreSQL prepare each statement once, unless a pooler is in between.

    Behind a pooler, the next statement may run on another connection of the server, which has
    not prepared it.
    """
    if cursor.db.vendor == "postgresql" and is_psycopg3() and not is_pooled(cursor):
        driver: Any = cursor.db.connection
        driver.prepare_threshold = 0


def is_pooled(cursor: CursorWrapper) -> bool:
    """Return whether a pooler is between this connection of PostgreSQL and the server.

    The state of a session on such a connection of the server (statements, LISTEN, settings) is left
    to the next client. Poolers give their clients other process ids than those of the server.
    """
    driver: Any = cursor.db.connection
    cursor.execute("SELECT pg_backend_pid()")
    is_direct: bool = cursor.fetchone() == (driver.info.backend_pid,)
    return not is_direct


_FOUND_ROWS = 2  # a flag of the protocol of MySQL
_creating = threading.RLock()


def _temporary_file(alias: str, name: str) -> str:
    with _creating:  # with two files, two threads would hold one lock
        return _new_temporary_file(alias, name)


@cache
def _new_temporary_file(alias: str, name: str) -> str:
    directory, process = tempfile.mkdtemp(prefix="redlock-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return os.path.join(directory, f"{alias}.locks")


def _check_database(alias: str) -> None:
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise ValueError(f"DATABASE {alias!r} is not in DATABASES; there is: {known}")
    try:
        vendor = connections[alias].vendor
    except ImproperlyConfigured as error:
        raise ValueError(f"DATABASE {alias!r} cannot be used: {error}") from None
    if vendor not in DIALECTS:
        raise ValueError(
            f"DATABASE {alias!r} is {vendor}: locks can be kept in PostgreSQL, MariaDB and SQLite. "
            " Name such a database, or remove BACKEND and list Redis servers in MASTERS"
        )
    if vendor != "sqlite":
        return
    if sqlite3.sqlite_version_info < (3, 35):
        raise ValueError(f"DATABASE {alias!r}: SQLite {sqlite3.sqlite_version} is older than 3.35")
    name = str(connections[alias].settings_dict["NAME"])
    in_memory = connections[alias].is_in_memory_db()  # type: ignore[attr-defined]
    if name.startswith("file:") and not in_memory:
        raise ValueError(
            f"DATABASE {alias!r}: NAME is a URI, from which the file for locks cannot be derived. "
            "Write the path of the file"
        )
