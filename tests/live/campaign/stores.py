"""The stores of the campaign: Redis masters, databases and ZooKeeper servers, which faults strike.

Masters and databases read clocks that faults set.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from django.core.management import call_command

from redlock_django import locks
from redlock_django.backends.database.dialects import DIALECTS, LOCKS, SECOND, WAITERS
from redlock_django.testing.processes import ProcessGroup
from tests.inspecting import held
from tests.live.campaign.worker import SESSION, TTL
from tests.live.clocks import Clock
from tests.live.left_over import PATTERNS
from tests.live.network import FaultUnavailable, Host, hosts_of
from tests.mariadb import (
    connect_to_mariadb,
    create_mariadb,
    mariadb_entry,
    wait_for_mariadb,
)
from tests.ports import free_port
from tests.postgres import create_postgres, postgres_entry, wait_for_postgres
from tests.zookeeper import ZooKeeperServer, local_zookeeper

BACKENDS = "redlock_django.backends"


class Store:
    """The store of the locks that the workers of a campaign use."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of Django for a worker."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Declare the servers new, or create the tables; Django has these settings by now."""
        call_command("redlock_init", stdout=StringIO())

    def clock_of(self, worker: Clock) -> Clock:
        """Return the clock that a worker reads: its own, or that of the store."""
        return worker

    def clocks(self) -> tuple[float, ...]:
        """Return the seconds by which the clocks of the servers are shifted."""
        return ()

    def left(self) -> Iterator[str]:
        """Yield what the workers have left behind, after every TTL has ended."""
        raise NotImplementedError


# Redis masters.


class Machine(Host):
    """A host whose server reads a clock that faults set."""

    clock: Clock
    shim: Path

    @property
    def here(self) -> str:
        """The address of this end of the cable."""
        return self._here

    def restart(self) -> None:
        """Start the server again; it loads what it has saved, and nothing else."""
        self.start(LD_PRELOAD=str(self.shim), CLOCK_SHIFT=str(self.clock.path))
        self.wait_ready()


class Masters(Store):
    """Five masters with a clock each; no worker has a `spare` one in its list."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.masters, self.spare = machines[:5], machines[5:]

    @staticmethod
    def settings_of(masters: Sequence[Machine]) -> dict[str, Any]:
        """Return the settings of a worker that uses these masters: short TTLs and the defaults."""
        urls = [machine.url for machine in masters]
        return {"REDLOCK": {"default": {"MASTERS": urls, "TTL": TTL, "MAX_TTL": TTL}}}

    @property
    def settings(self) -> dict[str, Any]:
        return self.settings_of(self.masters)

    def clocks(self) -> tuple[float, ...]:
        return tuple(machine.clock.wall for machine in self.masters)

    def left(self) -> Iterator[str]:
        for machine in self.masters:
            with machine.client() as client:
                for pattern in PATTERNS:
                    for key in client.scan_iter(match=pattern):
                        yield f"{key.decode()} is left on {machine.url}"


@contextmanager
def masters(shim: Path) -> Iterator[Masters]:
    """Start masters in network namespaces of their own, and delete them after the block."""
    with hosts_of(Machine, 7) as made:
        for machine in made:
            machine.shim, machine.clock = shim, Clock(machine.directory / "clock")
            machine.kill()
            machine.restart()
        yield Masters(made)


# Databases.


class Database(Store):
    """A database that faults strike; `clock` is the one that it reads, if there is a shim.

    Its clock is never set forward: that ends locks early, which `FencedModel` is for.
    """

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
        return {
            "DATABASES": {"default": self.entry},
            "REDLOCK": {
                "default": {
                    "BACKEND": f"{BACKENDS}.database.DatabaseBackend",
                    "TTL": TTL,
                    "MAX_TTL": TTL,
                }
            },
        }

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def clocks(self) -> tuple[float, ...]:
        return (self.clock.wall,)

    def left(self) -> Iterator[str]:
        # Locks of killed workers had expired before the clock was set back, and are held again
        # until then. They end later than all others.
        soon = f"BETWEEN {self.now} AND {self.now} + 60000000"
        for table, left in (
            (LOCKS, f"token_hash <> '' AND expires_at {soon}"),
            (WAITERS, f"alive_until {soon}"),
        ):
            if many := self.ask(f"SELECT count(*) FROM {table} WHERE {left}"):
                yield f"{many} rows are left in {table}"

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

    def clock_of(self, worker: Clock) -> Clock:
        return self.clock

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


@contextmanager
def opened(kind: type[Database], shim: Path) -> Iterator[Database]:
    """Start a database, and stop it after the block."""
    shim.parent.chmod(0o755)  # PostgreSQL does not run as root
    with ProcessGroup("redlock-database-") as processes:
        database = kind(shim, processes)
        try:
            yield database
        finally:
            database.stop()


# ZooKeeper.


class ZooKeeper(Store):
    """Three servers."""

    def __init__(self, servers: list[ZooKeeperServer]) -> None:
        self.servers = servers

    @property
    def settings(self) -> dict[str, Any]:
        hosts = [server.host for server in self.servers]
        session = {"HOSTS": hosts, "SESSION_TIMEOUT": SESSION, "TTL": 5 * TTL}
        return {
            "REDLOCK": {"default": {"BACKEND": f"{BACKENDS}.zookeeper.ZooKeeperBackend", **session}}
        }

    def pick(self, many: int, *, leader: bool) -> list[ZooKeeperServer]:
        """Return so many servers, with the one that leads or without it."""
        leads = [one for one in self.servers if (b"Mode: leader" in one.ask()) is leader]
        others = [one for one in self.servers if one not in leads]
        return [*leads, *random.sample(others, len(others))][:many]

    def left(self) -> Iterator[str]:
        for lock in held(locks["default"].backend).locks:
            yield f"{lock.resource} is left"


@contextmanager
def zookeeper(shim: Path) -> Iterator[ZooKeeper]:
    """Start the servers, and end them after the block."""
    with local_zookeeper(3) as servers:
        yield ZooKeeper(servers)


STORES: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "redis": masters,
    "postgresql": partial(opened, PostgreSQL),
    "mariadb": partial(opened, MariaDB),
    "sqlite": partial(opened, SqliteFile),
    "zookeeper": zookeeper,
}
