"""`manage.py purge_lock_rows`: delete the rows of old locks from a database of locks."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.purge import count_old, purge
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.handler import locks
from redlock_django.locking.names import printable
from redlock_django.management.operator_command import OperatorCommand, days
from redlock_django.management.single_run import BAD_ARGUMENTS

FAILED = 1
BATCH = 1000


class Command(OperatorCommand):
    """Exit status 0: done. 1: the database failed. 2: usage."""

    help = (
        "Delete the rows of locks that ended more than a number of days ago, in batches, from the "
        "database of an alias whose BACKEND is DatabaseBackend. Such a row is kept for the next "
        "fence; one whose fence is not as old as the lock is kept. "
        f"Exit status: 0 done; {FAILED} the database failed; 2 wrong arguments or settings."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--days", type=days, required=True, help="keep younger rows; 1 or more")
        parser.add_argument("--dry-run", action="store_true", help="only count the rows")

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete in batches and write the number of rows, also after an error."""
        using, age, problem, deleted = options["using"], options["days"] * 86_400, "", 0
        backend = locks[using].backend
        if not isinstance(backend, DatabaseBackend):
            raise CommandError(
                f"REDLOCK[{using!r}] keeps no rows: its BACKEND is not DatabaseBackend",
                returncode=BAD_ARGUMENTS,
            )
        try:
            if options["dry_run"]:
                deleted = count_old(backend.connections, age)
            else:
                for rows in purge(backend.connections, age, BATCH):
                    deleted += rows
        except StoreUnavailable as error:
            problem = printable(str(error))
        self.write_purged({"deleted": deleted}, options)
        if problem:
            raise CommandError(problem, returncode=FAILED)
