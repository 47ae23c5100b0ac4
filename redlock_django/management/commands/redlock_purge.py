"""`manage.py redlock_purge`: delete what is past its time from the tables of this app."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.purge import count_old, purge
from redlock_django.backends.database.tables import remedy_of
from redlock_django.exceptions import StoreUnavailable
from redlock_django.idempotency.records import RecordStore
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.names import printable
from redlock_django.locking.services import locks
from redlock_django.management.operator_command import OperatorCommand, iso, whole_number
from redlock_django.management.single_run import UsageError

FAILED, INTERRUPTED = 1, 130
BATCH = 1000
_RESULTS = ("deleted", "emptied")

Changes = Iterable[tuple[str, int]]
"""Pairs of "deleted" or "emptied" and a number of rows."""


class NotUsed(Exception):
    """The site keeps no rows of a kind; the message has the reason."""


@dataclass(frozen=True)
class Purge:
    """The purge of one kind in one database.

    `count` returns the rows that `run` would change. `run` changes them in batches of a number of
    rows, and yields how many after each.
    """

    database: str
    count: Callable[[], Changes]
    run: Callable[[int], Changes]


@dataclass(frozen=True)
class RowKind:
    """A kind of rows.

    `find` returns the purge of an alias of REDLOCK and of an age, or raises NotUsed; it changes
    nothing. `days` is the default age, or None if settings define how long rows are kept.
    """

    find: Callable[[str, timedelta], Purge]
    results: tuple[str, ...]
    days: int | None


class Report(NamedTuple):
    """The outcome of a kind, the number of rows by result, and the exit status."""

    outcome: str
    counts: Mapping[str, int] = {}
    problem: str = ""
    status: int = 0


def _records(using: str, age: timedelta) -> Purge:
    settings = settings_of(using)
    _require_database(settings.database)
    store = RecordStore(settings.database, retention=timedelta(seconds=settings.retention))

    def count() -> Changes:
        found = store.purgeable()
        yield "deleted", found.expired.count() + found.unresolved.count()
        yield "emptied", found.to_empty.count()

    def run(batch: int) -> Changes:
        return store.purge(batch)

    return Purge(settings.database, count, run)


def _locks(using: str, age: timedelta) -> Purge:
    backend = locks[using].backend
    if not isinstance(backend, DatabaseBackend):
        raise NotUsed(f"REDLOCK[{using!r}] keeps no rows: its BACKEND is not DatabaseBackend.")
    seconds = age.total_seconds()

    def count() -> Changes:
        yield "deleted", count_old(backend.connections, seconds)

    def run(batch: int) -> Changes:
        return (("deleted", rows) for rows in purge(backend.connections, seconds, batch))

    return Purge(backend.settings.database, count, run)


KINDS: Mapping[str, RowKind] = {
    "records": RowKind(_records, ("deleted", "emptied"), days=None),
    "locks": RowKind(_locks, ("deleted",), days=30),
}


class Command(OperatorCommand):
    """Exit status 0: done. 1: a database failed. 2: usage. 130: interrupted."""

    help = (
        "Delete what is past its time. Records: the responses of idempotency records that are "
        "older than RETENTION, which keeps their keys, and records that are older than "
        "30 days more, also those of requests whose outcome nobody has resolved. "
        "Locks: the rows of locks in a database that ended --days ago, unless their fences are "
        "still needed. Each batch is a separate transaction, so the command can be interrupted at "
        "any time and run again. "
        f"Exit status: 0 done; {FAILED} a database failed, and the other kinds are done; 2 wrong "
        f"arguments or settings; {INTERRUPTED} interrupted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add(
            "--only",
            action="append",
            choices=tuple(KINDS),
            help="purge this kind only; repeat it for several (default: all that the site uses)",
        )
        defaults = ", ".join(f"{kind.days} for {name}" for name, kind in KINDS.items() if kind.days)
        add(
            "--days",
            type=whole_number(1, 36_500, "days"),
            metavar="N",
            help=f"with --only locks: keep younger rows (default: {defaults})",
        )
        add(
            "--batch",
            type=whole_number(1, 10_000, "rows"),
            default=BATCH,
            metavar="N",
            help=f"rows per batch (default: {BATCH})",
        )
        add("--dry-run", action="store_true", help="only count the rows")

    def handle(self, *args: Any, **options: Any) -> None:
        """Purge kind by kind and write one line for each, also after an error."""
        found = _find(options["using"], options["only"], options["days"])
        reports = {name: Report("not begun" if one else "not used") for name, one in found.items()}
        for name, one in found.items():
            if one is not None:
                reports[name] = self._purge(name, one, options)
            if reports[name].status == INTERRUPTED:
                break
        self._write(reports, options)
        if status := max(report.status for report in reports.values()):
            problems = [report.problem for report in reports.values() if report.problem]
            raise CommandError("\n".join(problems), returncode=status)

    def _purge(self, name: str, found: Purge, options: Mapping[str, Any]) -> Report:
        """Purge a kind, or only count; write the progress to stderr."""
        dry_run, counts = options["dry_run"], dict.fromkeys(KINDS[name].results, 0)
        try:
            for result, rows in found.count() if dry_run else found.run(options["batch"]):
                counts[result] += rows
                if rows and not dry_run:
                    self.stderr.write(f"{name}: {result} {counts[result]}")
        except KeyboardInterrupt:
            problem = "Interrupted. Finished batches have been committed."
            return Report("interrupted", counts, problem, INTERRUPTED)
        except (Error, StoreUnavailable) as error:
            problem = remedy_of(error, found.database) or str(error)
            return Report("failed", counts, f"{name}: {printable(problem)}", FAILED)
        return Report("done", counts)

    def _write(self, reports: Mapping[str, Report], options: Mapping[str, Any]) -> None:
        if self.as_json:
            about = {"using": options["using"], "dry_run": options["dry_run"]}
            kinds = {name: {"outcome": it.outcome, **it.counts} for name, it in reports.items()}
            self.write_json({**about, "at": iso(time.time()), "kinds": kinds})
            return
        rows = [
            (name, it.outcome, *(str(it.counts.get(result, "-")) for result in _RESULTS))
            for name, it in reports.items()
        ]
        self.write_table(("KIND", "OUTCOME", *map(str.upper, _RESULTS)), rows, flexible=())


def _find(using: str, only: list[str] | None, days: int | None) -> dict[str, Purge | None]:
    """Return the purge of each selected kind, None for a kind that the site does not use.

    Raises CommandError for an option that does not fit a selected kind, and for a kind of --only
    that the site does not use.
    """
    found: dict[str, Purge | None] = {}
    for name, kind in KINDS.items():
        if only and name not in only:
            continue
        if days and kind.days is None:
            raise UsageError(
                f"--days does not fit {name}: RETENTION in IDEMPOTENCY says how long responses are "
                "kept, and their keys are kept for 30 days more. Use --days with --only locks."
            )
        try:
            found[name] = kind.find(using, timedelta(days=days or kind.days or 0))
        except NotUsed as error:
            if only:
                raise UsageError(f"--only {name}: {error}") from None
            found[name] = None
    return found


def _require_database(alias: str) -> None:
    """Raise NotUsed if the site has no database of this alias."""
    database = connections.settings.get(alias)
    if database is None or database["ENGINE"] == "django.db.backends.dummy":
        raise NotUsed(f"DATABASES has no database {alias!r}.")
