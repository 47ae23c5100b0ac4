"""`manage.py purge_idempotency_records`: empty and delete old records, in batches."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from redlock_django.idempotency.settings import settings_of
from redlock_django.idempotency.stores.database import DatabaseStore
from redlock_django.locking.names import printable
from redlock_django.management.operator_command import OperatorCommand

FAILED, INTERRUPTED = 1, 130


class Command(OperatorCommand):
    """Exit status 0: done. 1: the database failed. 2: usage. 130: interrupted."""

    help = (
        "Remove the responses of idempotency records that are older than RETENTION, which keeps "
        "their keys, and delete records that are older than TOMBSTONE_RETENTION too, also those "
        "of requests whose outcome nobody has resolved. Each batch is a separate transaction, so "
        "the command can be interrupted at any time and run again. Records in a cache expire "
        "without this command. "
        f"Exit status: 0 done; {FAILED} the database failed; 2 wrong arguments or settings; "
        f"{INTERRUPTED} interrupted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--batch", type=_batch, default=1000, metavar="N", help="rows per batch (default: 1000)"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count the records")

    def handle(self, *args: Any, **options: Any) -> None:
        """Purge in batches and write the number of records, also after an error."""
        settings = settings_of(options["using"])
        store = DatabaseStore(settings.database, retention=timedelta(seconds=settings.retention))
        kept = timedelta(seconds=settings.tombstone_retention)
        counts = {"deleted": 0, "emptied": 0}
        problem, status = "", 0
        try:
            if options["dry_run"]:
                found = store.purgeable(tombstone_retention=kept)
                gone = found.expired.count() + found.unresolved.count()
                counts = {"deleted": gone, "emptied": found.to_empty.count()}
            else:
                for what, rows in store.purge(tombstone_retention=kept, batch=options["batch"]):
                    counts[what] += rows
                    self.stderr.write(f"{what} {counts[what]}")
        except KeyboardInterrupt:
            problem, status = "Interrupted. Finished batches have been committed.", INTERRUPTED
        except DatabaseError as error:
            problem, status = printable(str(error)), FAILED
        self.write_purged(counts, options)
        if status:
            raise CommandError(problem, returncode=status)


def _batch(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ArgumentTypeError("must be a number of rows, 1 or more")
    return int(text)
