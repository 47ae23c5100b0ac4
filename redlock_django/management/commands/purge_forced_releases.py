"""`manage.py purge_forced_releases`: delete old records of locks that operators released."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from redlock_django.locking.names import printable
from redlock_django.management.operator_command import OperatorCommand, days
from redlock_django.models import ForcedRelease

FAILED = 1
BATCH = 1000


class Command(OperatorCommand):
    """Exit status 0: done. 1: the database failed. 2: usage."""

    help = (
        "Delete the records of forced releases that are older than a number of days, in batches. "
        "They are kept for ever otherwise, because they show which operator released which lock. "
        f"Exit status: 0 done; {FAILED} the database failed; 2 wrong arguments or settings."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--days", type=days, required=True, help="keep younger records; 1 or more"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count the records")

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete in batches and write the number of records, also after an error."""
        before = timezone.now() - timedelta(days=options["days"])
        old = ForcedRelease.objects.filter(using=options["using"], at__lt=before)
        deleted, problem = 0, ""
        try:
            if options["dry_run"]:
                deleted = old.count()
            else:
                while batch := list(old.order_by("at").values_list("pk", flat=True)[:BATCH]):
                    deleted += ForcedRelease.objects.filter(pk__in=batch).delete()[0]
        except DatabaseError as error:
            problem = printable(str(error))
        self.write_purged({"deleted": deleted}, options)
        if problem:
            raise CommandError(problem, returncode=FAILED)
