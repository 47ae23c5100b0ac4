"""The databases of the campaign: PostgreSQL and MariaDB servers, and a file of SQLite.

Each reads a clock that faults set, and can be struck in the ways that its kind allows.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from redlock_django.backends.database.dialects import DIALECTS, LOCKS, SECOND
from redlock_django.testing.processes import ProcessGroup
from tests.live.campaign.worker import TTL
from tests.live.clocks import Clock
from tests.live.network import FaultUnavailable
from tests.mariadb import (
    connect_to_mariadb,
    create_mariadb,
    mariadb_entry,
    wait_for_mariadb,
)
from tests.ports import free_port
from tests.postgres import create_postgres, postgres_entry, wait_for_postgres

BACKEND = "redlock_django.backends.database.DatabaseBackend"


class Database:
    """A database that faults strike; `clock` is the one that it reads, if there is a shim."""

    vendor: ClassVar[str]

    def __init__(self, shim: Path | None, processes: ProcessGroup) -> None:
        self.processes = processes
        self.clock = Clock(processes.directory / "clock")
        self.shifted = {"LD_PRELOAD": str(shim), "CLOCK_SHIFT": str(self.clock.path)}
        if shim is None:
            self.shifted = {}

    @property
    def now(self) -> str:
        """The expression for the time in µs by its clock."""
        return DIALECTS[self.vendor].now

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of DATABASES."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of Django for a worker."""
        return {
            "DATABASES": {"default": self.entry},
            "REDLOCK": {"default": {"BACKEND": BACKEND, "TTL": TTL, "MAX_TTL": TTL}},
        }

    def cursor(self) -> AbstractContextManager[Any]:
        """Return a cursor of a new connection; what it did is committed at the end."""
        raise NotImplementedError

    def ask(self, statement: str) -> Any:
        """Return the first value of the answer, if there is one."""
        with self.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def set_back(self, seconds: float) -> None:
        """Set the clock back, and check that the database follows."""
        self.clock.set(wall=self.clock.wall - seconds)
        now = self.ask(f"SELECT {self.now}") / SECOND
        assert now == pytest.approx(time.time() + self.clock.wall, abs=0.4 * seconds)

    def keep_rows(self, after: ExitStack) -> None:
        """Keep all rows of locks in a transaction, which `after` ends."""
        cursor = after.enter_context(self.cursor())
        cursor.execute(f"SELECT 1 FROM {LOCKS} FOR UPDATE")

    def stop(self) -> None:
        """End the database in good order."""


class Server(Database):
    """A server process."""

    process: subprocess.Popen[bytes]

    def __init__(self, shim: Path | None, processes: ProcessGroup) -> None:
        super().__init__(shim, processes)
        self.port = free_port()
        self.log = processes.directory / "log"
        self.create()
        self.start()

    def create(self) -> None:
        """Create the files of the server."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        raise NotImplementedError

    def spawn(self, command: list[str], **options: Any) -> None:
        """Start the process of the server."""
        with self.log.open("ab") as output:
            self.process = self.processes.spawn(
                command, stderr=output, env={**os.environ, **self.shifted}, **options
            )

    def end(self, how: signal.Signals) -> None:
        """End the server."""
        self.process.send_signal(how)
        self.process.wait(30)

    def crash(self) -> None:
        """End the server without giving it time to write anything."""
        self.end(signal.SIGKILL)

    def signal_all(self, what: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for number in (self.process.pid, *map(int, found.stdout.split())):
            os.kill(number, what)

    def end_connections(self) -> None:
        """End all connections of clients."""
        raise NotImplementedError


class PostgreSQL(Server):
    """A PostgreSQL server."""

    vendor = "postgresql"

    def create(self) -> None:
        self._command, self._owner = create_postgres(self.processes.directory)

    def start(self) -> None:
        flags = ["-c", f"port={self.port}", "-c", "max_connections=300"]
        self.spawn([*self._command, *flags], **self._owner)
        wait_for_postgres(self.port, self.process, self.log)

    def stop(self) -> None:
        self.end(signal.SIGINT)  # a fast shutdown

    def crash(self) -> None:
        self.end(signal.SIGQUIT)  # as a crash, but it removes its shared memory

    @property
    def entry(self) -> dict[str, Any]:
        return postgres_entry(self.port)

    @contextmanager
    def cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        with (
            psycopg.connect(**where, user="postgres", dbname="postgres") as connection,
            connection.cursor() as cursor,
        ):
            yield cursor

    def end_connections(self) -> None:
        self.ask(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    def kill_process(self) -> None:
        """Kill a process of the server, which then ends all connections and recovers."""
        with suppress(psycopg.Error), self.cursor() as cursor:
            os.kill(cursor.connection.info.backend_pid, signal.SIGKILL)


class MariaDB(Server):
    """A MariaDB server."""

    vendor = "mysql"

    def create(self) -> None:
        self._command = create_mariadb(self.processes.directory)

    def start(self) -> None:
        self.spawn([*self._command, f"--port={self.port}"])
        wait_for_mariadb(self.port, self.process, self.log)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    @property
    def entry(self) -> dict[str, Any]:
        return mariadb_entry(self.port)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        with connect_to_mariadb(self.port, "shop") as connection:
            yield connection.cursor()
            connection.commit()

    def end_connections(self) -> None:
        with self.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist "
                "WHERE id <> connection_id() AND user = 'root'"
            )
            for (number,) in cursor.fetchall():
                with suppress(Exception):  # it has ended meanwhile
                    cursor.execute(f"KILL {number}")


class SqliteFile(Database):
    """A file of SQLite on a file system of its own, which can be full.

    The processes of one machine share its clock, so all workers read the same one.
    """

    vendor = "sqlite"

    def __init__(self, shim: Path | None, processes: ProcessGroup) -> None:
        super().__init__(shim, processes)
        self._disk = processes.directory / "disk"
        self._disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(self._disk)]
        self._mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    @property
    def entry(self) -> dict[str, Any]:
        name = str(self._disk / "site.sqlite3")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name}

    @contextmanager
    def cursor(self) -> Iterator[sqlite3.Cursor]:
        file = f"{self._disk}/site.sqlite3.locks"
        with closing(sqlite3.connect(file, timeout=10)) as connection, connection:
            yield connection.cursor()

    @property
    def now(self) -> str:
        shift = round(self.clock.wall * SECOND)  # this process reads another clock
        return f"({super().now} + {shift})"

    def keep_rows(self, after: ExitStack) -> None:
        cursor = after.enter_context(self.cursor())
        cursor.execute("BEGIN IMMEDIATE")

    def fill(self, after: ExitStack) -> None:
        """Fill the file system; `after` frees it."""
        if not self._mounted:
            raise FaultUnavailable("a file system of a test needs root")
        filler = self._disk / "filler"
        after.callback(filler.unlink)
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def stop(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self._disk)], check=False)


Open = Callable[[Path, ProcessGroup], Database]
DATABASES: dict[str, Open] = {
    "postgresql": PostgreSQL,
    "mariadb": MariaDB,
    "sqlite": SqliteFile,
}
