"""`manage.py redlock_purge`: delete what is past its time from the tables of this app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.purge import purge
from redlock_django.backends.database.tables import remedy_of
from redlock_django.exceptions import StoreUnavailable
from redlock_django.idempotency.records import RecordStore
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.names import printable
from redlock_django.locking.services import locks
from redlock_django.management.operator_command import OperatorCommand
from redlock_django.management.single_run import UsageError

FAILED = 1
BATCH = 1000
"""The rows that a transaction deletes or empties at most."""

LONGEST = 36_500  # days
DAYS = 30


class Purge(NamedTuple):
    """A kind of rows and their database; `batches` deletes them, and yields what each has done."""

    kind: str
    database: str
    batches: Iterable[tuple[str, int]]


class Command(OperatorCommand):
    """Exit status 0: done. 1: a database failed. 2: usage."""

    help = (
        "Delete what is past its time: the responses of idempotency records that are older than "
        "RETENTION, which keeps their keys; records that are older than 30 days more, also those "
        "of requests whose outcome nobody has resolved; and the rows of locks in a database that "
        "ended --days ago, unless their fences are still needed. Each batch is a separate "
        "transaction, so the command can be interrupted at any time and run again. "
        f"Exit status: 0 done; {FAILED} a database failed, and the rest is done; 2 wrong "
        "arguments or settings."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--days",
            type=int,
            default=DAYS,
            metavar="N",
            help=f"keep the rows of locks that ended less than N days ago (default: {DAYS})",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Purge the records, then the locks, also after an error; write a line for each."""
        days = options["days"]
        if not 1 <= days <= LONGEST:
            raise UsageError(f"--days must be a number of days from 1 to {LONGEST}, got {days}.")
        problems, purges = [], list(_purges(options["using"], timedelta(days=days)))
        if not purges:
            self.warn("The site keeps no records and no locks in a database.")
        for found in purges:
            done: Counter[str] = Counter()
            try:
                for result, rows in found.batches:
                    done[result] += rows
            except (Error, StoreUnavailable) as error:
                problem = remedy_of(error, found.database) or str(error)
                problems.append(f"{found.kind}: {printable(problem)}")
            else:
                done = done or Counter(deleted=0)
            if done:  # after an error, the batches before it
                counts = (f"{result} {rows}" for result, rows in done.items())
                self.stdout.write(f"{found.kind}: {', '.join(counts)}")
        if problems:
            raise CommandError("\n".join(problems), returncode=FAILED)


def _purges(using: str, age: timedelta) -> Iterator[Purge]:
    """Yield what the site keeps rows of: idempotency records, and locks in a database."""
    settings = settings_of(using)
    database = connections.settings.get(settings.database)
    if database is not None and database["ENGINE"] != "django.db.backends.dummy":
        store = RecordStore(settings.database, retention=timedelta(seconds=settings.retention))
        yield Purge("records", settings.database, store.purge(BATCH))
    backend = locks[using].backend
    if isinstance(backend, DatabaseBackend):
        rows = purge(backend.connections, age.total_seconds(), BATCH)
        deleted = (("deleted", number) for number in rows)
        yield Purge("locks", backend.settings.database, deleted)
