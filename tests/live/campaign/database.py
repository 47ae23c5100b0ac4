"""`python -m tests.live.campaign.database`: the campaign against locks in PostgreSQL.

One server with a clock of its own, and the workers of the campaign. While the server is down no
lock is granted; two holders at once, fences that do not grow and undocumented exceptions are broken
promises in all of the faults. The exit status is 1 if there is one. It needs gcc and PostgreSQL.

Its clock is never set forward: that ends locks early, which `FencedModel` is for.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import django
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command

from redlock_django.backends.database_dialects import LOCKS, WAITERS
from redlock_django.testing.processes import ProcessGroup
from redlock_django.wire.clock import clock
from tests.live.campaign.faults import LASTS, Kind, Stage
from tests.live.campaign.processes import Workers
from tests.live.campaign.report import availability, broken_promises, table
from tests.live.campaign.run import LINGERS, START, WORKERS, Campaign, print_line
from tests.live.campaign.worker import TTL
from tests.live.clocks import Clock, build
from tests.ports import free_port
from tests.postgres import postgres_owner, postgres_programs, wait_for_postgres

if TYPE_CHECKING:
    from tests.live.campaign.machines import Machine


class Server:
    """A PostgreSQL server that reads a clock which faults set."""

    def __init__(self, shim: Path, processes: ProcessGroup) -> None:
        self._shim, self._processes = shim, processes
        self._programs = postgres_programs()
        self._owner = postgres_owner(processes.directory)
        self.port = free_port()
        self.clock = Clock(processes.directory / "clock")
        data = str(processes.directory / "data")
        command = [str(self._programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust"]
        subprocess.run([*command, "--no-sync"], check=True, capture_output=True, **self._owner)
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        flags = ["fsync=off", "listen_addresses=127.0.0.1", f"port={self.port}"]
        flags += [f"unix_socket_directories={self._processes.directory}", "max_connections=300"]
        command = [str(self._programs / "postgres"), "-D", str(self._processes.directory / "data")]
        command += [part for flag in flags for part in ("-c", flag)]
        log = self._processes.directory / "log"
        shifted = {"LD_PRELOAD": str(self._shim), "CLOCK_SHIFT": str(self.clock.path)}
        with log.open("ab") as output:
            self._process = self._processes.spawn(
                command, stderr=output, env={**os.environ, **shifted}, **self._owner
            )
        wait_for_postgres(self.port, self._process, log)

    def stop(self, how: signal.Signals) -> None:
        """End the server: SIGINT is a fast shutdown, SIGQUIT an immediate one, as in a crash."""
        self._process.send_signal(how)
        self._process.wait(30)

    def signal_all(self, what: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for number in (self._process.pid, *map(int, found.stdout.split())):
            os.kill(number, what)

    def set_back(self, seconds: float) -> None:
        """Set the server's clock back, and check that it follows."""
        self.clock.set(wall=self.clock.wall - seconds)
        now = float(self.ask("SELECT extract(epoch FROM clock_timestamp())"))
        assert now == pytest.approx(time.time() + self.clock.wall, abs=0.4 * seconds)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Return a connection."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        with psycopg.connect(**where, user="postgres", dbname="postgres") as connection:
            yield connection

    def ask(self, statement: str) -> Any:
        """Return the first value of the answer, if there is one."""
        with self.connection() as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of Django for a worker."""
        entry = {"HOST": "127.0.0.1", "PORT": str(self.port), "USER": "postgres"}
        engine = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}
        backend = "redlock_django.backends.database.DatabaseBackend"
        return {
            "DATABASES": {"default": {**engine, **entry}},
            "REDLOCK": {"default": {"BACKEND": backend, "TTL": TTL, "MAX_TTL": TTL}},
        }


class DatabaseWorkers(Workers):
    """Workers whose locks are in a database."""

    def __init__(self, server: Server, shim: Path, processes: ProcessGroup) -> None:
        super().__init__((), shim, processes)
        self._server = server

    def target(self, foreign: Sequence[Machine]) -> str:
        """Return the settings of a worker as JSON."""
        return json.dumps(self._server.settings)


class DatabaseCampaign(Campaign):
    """A campaign against one database server."""

    def __init__(self, server: Server, workers: Workers) -> None:
        super().__init__(cast("list[Machine]", [server]), (), workers)
        self._server = server

    def begin(self) -> None:
        """Start the workers, and measure them without a fault."""
        for _ in range(WORKERS):
            self.workers.start()
        self._wait_until_well("the beginning", START)

    def end(self) -> None:
        """End all workers, and check that they leave nothing behind."""
        for worker in list(self.workers.running):
            self.workers.end(worker)
        self.broken += self.workers.broken
        time.sleep(LINGERS)
        # Locks of killed workers had expired before the clock was set back, and are held again
        # until then. They end later than all others.
        now = "extract(epoch FROM clock_timestamp()) * 1000000"
        soon = f"BETWEEN {now} AND {now} + 60000000"
        for table_of, left in (
            (LOCKS, f"token_hash <> '' AND expires_at {soon}"),
            (WAITERS, f"alive_until {soon}"),
        ):
            if many := self._server.ask(f"SELECT count(*) FROM {table_of} WHERE {left}"):
                self.broken.append(f"{many} rows are left in {table_of}")
        self.broken += broken_promises(self.workers.events, self.foreign, self.windows)


Begin = Callable[[Server, Stage], object]
_FAULTS: list[tuple[str, Begin]] = []


def _fault(name: str) -> Callable[[Begin], None]:
    return lambda begin: _FAULTS.append((name, begin))


@_fault("all connections are ended")
def _end_connections(server: Server, stage: Stage) -> None:
    server.ask(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


@_fault("a server process is killed, and the server recovers")
def _kill_process(server: Server, stage: Stage) -> None:
    with server.connection() as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        connection.close()


@_fault("the server is restarted")
def _restart(server: Server, stage: Stage) -> None:
    server.stop(signal.SIGINT)
    server.start()


@_fault("the server crashes, and is started two seconds later")
def _crash(server: Server, stage: Stage) -> None:
    server.stop(signal.SIGQUIT)
    stage.after.callback(server.start)


@_fault("the server is stopped for twice the TTL (SIGSTOP)")
def _stop(server: Server, stage: Stage) -> None:
    server.signal_all(signal.SIGSTOP)
    stage.after.callback(server.signal_all, signal.SIGCONT)


@_fault("another transaction has all rows")
def _lock_rows(server: Server, stage: Stage) -> None:
    connection = stage.after.enter_context(server.connection())
    connection.execute(f"SELECT FROM {LOCKS} FOR UPDATE")


@_fault("the queue is emptied")
def _empty_queue(server: Server, stage: Stage) -> None:
    server.ask(f"DELETE FROM {WAITERS}")


@_fault("the server's clock is set back by half a second")
def _back(server: Server, stage: Stage) -> None:
    server.set_back(0.5)


@_fault("the server's clock is set back by an hour")
def _back_an_hour(server: Server, stage: Stage) -> None:
    server.set_back(3600)


_OF_WORKERS = ("a worker", "a crowd")


def kinds_of(server: Server, others: Sequence[Kind]) -> list[Kind]:
    """Return the kinds of faults of this server, and those of workers."""
    ours = [
        Kind(name, lambda stage, begin=begin: begin(server, stage))  # type: ignore[misc]
        for name, begin in _FAULTS
    ]
    return [*ours, *(kind for kind in others if kind.name.startswith(_OF_WORKERS))]


def run(seconds: float, seed: int, only: str) -> tuple[DatabaseCampaign, list[Kind]]:
    """Run a campaign of about so many seconds, every kind equally often."""
    from tests.live.campaign.faults import KINDS

    rng = random.Random(seed)
    with ExitStack() as stack:
        shim = build(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        shim.parent.chmod(0o755)
        server = Server(shim, stack.enter_context(ProcessGroup("redlock-postgres-")))
        stack.callback(server.stop, signal.SIGINT)
        processes = stack.enter_context(ProcessGroup("redlock-campaign-"))
        settings.configure(INSTALLED_APPS=["redlock_django"], **server.settings)
        django.setup()
        call_command("migrate", verbosity=0)
        campaign = DatabaseCampaign(server, DatabaseWorkers(server, shim, processes))
        campaign.begin()
        kinds = [kind for kind in kinds_of(server, KINDS) if only in kind.name]
        until, due = clock() + seconds, list[Kind]()
        while clock() < until:
            if not due:
                campaign.healthy()
                due = rng.sample(kinds, len(kinds))
            campaign.strike(due.pop())
            last = campaign.windows[-1]
            print_line(f"{clock() - until + seconds:6.0f} s: {last.kind}, {last.back:.1f} s")
        campaign.end()
    return campaign, kinds


def main() -> int:
    """Read the command line, run the campaign, and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.campaign.database")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of faults whose names contain this")
    options = parser.parse_args()
    print_line(f"seed {options.seed}, {options.minutes:g} minutes")
    campaign, kinds = run(60 * options.minutes, options.seed, options.only)
    events = campaign.events
    rows = availability(campaign.windows, events, [kind.name for kind in kinds])
    grants = sum(event.what == "granted" or event.entry == "granted" for event in events)
    print_line(f"\n{table(rows)}\n\n{grants:,} grants, {len(campaign.windows):,} faults")
    for line in campaign.broken:
        print_line(f"BROKEN: {line}")
    print_line("broken" if campaign.broken else "all promises kept")
    return 1 if campaign.broken else 0


assert TTL * 2 <= LASTS, "the server must be stopped for twice the TTL"

if __name__ == "__main__":
    sys.exit(main())
