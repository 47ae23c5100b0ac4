"""`python -m tests.live.campaign.database`: the campaign against locks in a database.

One database with a clock of its own (`--store postgresql`, `mariadb` or `sqlite`), and the workers
of the campaign. While it is down no lock is granted; two holders at once, fences that do not grow
and undocumented exceptions are broken promises in all of the faults. The exit status is 1 if there
is one. It needs gcc and the server.

Its clock is never set forward: that ends locks early, which `FencedModel` is for.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import django
from django.conf import settings
from django.core.management import call_command

from redlock_django.backends.database.dialects import LOCKS, WAITERS
from redlock_django.testing.processes import ProcessGroup
from redlock_django.wire.clock import clock
from tests.live.campaign.database_servers import (
    DATABASES,
    Database,
    PostgreSQL,
    Server,
    SqliteFile,
)
from tests.live.campaign.faults import LASTS, Kind, Stage
from tests.live.campaign.processes import Workers
from tests.live.campaign.report import availability, broken_promises, table
from tests.live.campaign.run import LINGERS, START, WORKERS, Campaign, print_line
from tests.live.campaign.worker import PERMITS, TTL, use_pymysql
from tests.live.clocks import Clock, build

if TYPE_CHECKING:
    from tests.live.campaign.machines import Machine


class DatabaseWorkers(Workers):
    """Workers whose locks are in a database."""

    def __init__(self, database: Database, shim: Path, processes: ProcessGroup) -> None:
        super().__init__((), shim, processes)
        self._database = database

    def target(self, foreign: Sequence[Machine]) -> str:
        """Return the settings of a worker as JSON."""
        return json.dumps(self._database.settings)

    def clock_of(self, name: str) -> Clock:
        """Return the clock of a worker, which is that of its locks if these are in a file."""
        is_file = isinstance(self._database, SqliteFile)
        return self._database.clock if is_file else super().clock_of(name)


class DatabaseCampaign(Campaign):
    """A campaign against one database."""

    def __init__(self, database: Database, workers: Workers) -> None:
        super().__init__(cast("list[Machine]", [database]), (), workers)
        self._database = database

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
        now = self._database.now
        soon = f"BETWEEN {now} AND {now} + 60000000"
        for table_of, left in (
            (LOCKS, f"token_hash <> '' AND expires_at {soon}"),
            (WAITERS, f"alive_until {soon}"),
        ):
            if many := self._database.ask(f"SELECT count(*) FROM {table_of} WHERE {left}"):
                self.broken.append(f"{many} rows are left in {table_of}")
        self.broken += broken_promises(self.workers.events, self.foreign, self.windows)


Begin = Callable[[Any, Stage], object]
_FAULTS: list[tuple[str, type[Database], Begin]] = []


def _fault(name: str, of: type[Database] = Database) -> Callable[[Begin], None]:
    return lambda begin: _FAULTS.append((name, of, begin))


@_fault("all connections are ended", Server)
def _end_connections(server: Server, stage: Stage) -> None:
    server.end_connections()


@_fault("a server process is killed, and the server recovers", PostgreSQL)
def _kill_process(server: PostgreSQL, stage: Stage) -> None:
    server.kill_process()


@_fault("the server is restarted", Server)
def _restart(server: Server, stage: Stage) -> None:
    server.stop()
    server.start()


@_fault("the server crashes, and is started two seconds later", Server)
def _crash(server: Server, stage: Stage) -> None:
    server.crash()
    stage.after.callback(server.start)


@_fault("the server is stopped for twice the TTL (SIGSTOP)", Server)
def _stop(server: Server, stage: Stage) -> None:
    server.signal_all(signal.SIGSTOP)
    stage.after.callback(server.signal_all, signal.SIGCONT)


@_fault("the file system is full", SqliteFile)
def _fill(file: SqliteFile, stage: Stage) -> None:
    file.fill(stage.after)


@_fault("another transaction has all rows")
def _keep_rows(database: Database, stage: Stage) -> None:
    database.keep_rows(stage.after)


@_fault("the queue is emptied")
def _empty_queue(database: Database, stage: Stage) -> None:
    database.ask(f"DELETE FROM {WAITERS}")


@_fault("the database's clock is set back by half a second")
def _back(database: Database, stage: Stage) -> None:
    database.set_back(0.5)


@_fault("the database's clock is set back by an hour")
def _back_an_hour(database: Database, stage: Stage) -> None:
    database.set_back(3600)


_OF_WORKERS = ("a worker", "a crowd")


def kinds_of(database: Database, others: Sequence[Kind]) -> list[Kind]:
    """Return the kinds of faults of this database, and those of workers."""
    ours = [
        Kind(name, lambda stage, begin=begin: begin(database, stage))  # type: ignore[misc]
        for name, of, begin in _FAULTS
        if isinstance(database, of)
    ]
    of_workers = [kind for kind in others if kind.name.startswith(_OF_WORKERS)]
    if isinstance(database, SqliteFile):  # its processes have one clock
        of_workers = [kind for kind in of_workers if "wall clock" not in kind.name]
    return [*ours, *of_workers]


def run(store: str, seconds: float, seed: int, only: str) -> tuple[DatabaseCampaign, list[Kind]]:
    """Run a campaign of about so many seconds, every kind equally often."""
    from tests.live.campaign.faults import KINDS

    rng = random.Random(seed)
    with ExitStack() as stack:
        shim = build(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        shim.parent.chmod(0o755)
        group = stack.enter_context(ProcessGroup("redlock-database-"))
        database = DATABASES[store](shim, group)
        stack.callback(database.stop)
        processes = stack.enter_context(ProcessGroup("redlock-campaign-"))
        use_pymysql(json.dumps(database.settings))
        settings.configure(INSTALLED_APPS=["redlock_django"], **database.settings)
        django.setup()
        call_command("migrate", verbosity=0)
        campaign = DatabaseCampaign(database, DatabaseWorkers(database, shim, processes))
        campaign.begin()
        kinds = [kind for kind in kinds_of(database, KINDS) if only in kind.name]
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
    parser.add_argument("--store", choices=DATABASES, default="postgresql")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of faults whose names contain this")
    options = parser.parse_args()
    print_line(f"{options.store}, seed {options.seed}, {options.minutes:g} minutes")
    campaign, kinds = run(options.store, 60 * options.minutes, options.seed, options.only)
    events = campaign.events
    rows = availability(campaign.windows, events, [kind.name for kind in kinds])
    grants = sum(event.what == "granted" or event.entry == "granted" for event in events)
    permits = sum(
        event.what == "granted" and event.resource.startswith(PERMITS) for event in events
    )
    counts = f"{grants:,} grants ({permits:,} permits), {len(campaign.windows):,} faults"
    print_line(f"\n{table(rows)}\n\n{counts}")
    for line in campaign.broken:
        print_line(f"BROKEN: {line}")
    print_line("broken" if campaign.broken else "all promises kept")
    return 1 if campaign.broken else 0


assert TTL * 2 <= LASTS, "the server must be stopped for twice the TTL"

if __name__ == "__main__":
    sys.exit(main())
