"""`manage.py resolve_idempotency`: say what became of requests whose outcome nobody knows."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from redlock_django.exceptions import IdempotencyUnavailable
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import Store, Unsettled
from redlock_django.idempotency.resolve import ResolveOutcome, is_running, kept_by, resolve
from redlock_django.locking.names import printable
from redlock_django.management.operating import OperatorCommand, iso, whoever
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM

NOT_RESOLVED = 1
DECLINED, UNKNOWN = "declined", "not found"
STATUSES: Mapping[str, int] = {
    ResolveOutcome.RESOLVED.value: 0,
    DECLINED: NOT_RESOLVED,
    UNKNOWN: NOT_RESOLVED,
    ResolveOutcome.RUNNING.value: NOT_RESOLVED,
    ResolveOutcome.SETTLED.value: NOT_RESOLVED,
    ResolveOutcome.NO_QUORUM.value: NO_QUORUM,
}
"""Every outcome with its exit status; of several the worst counts."""


class Result(NamedTuple):
    """What came of one beginning of a hash: one of STATUSES, or what a record is said to be."""

    outcome: str
    key: str
    record: Unsettled | None = None


class Command(OperatorCommand):
    """Exit status 0: resolved, or shown. 1: one was not. 2: usage. 3: no quorum."""

    help = (
        "Say of requests that were interrupted whether they took effect. Without --applied and "
        "--not-applied, show what is unsettled and change nothing. Exit status: 0 resolved; "
        f"{NOT_RESOLVED} not found, running, known by now or declined; {BAD_ARGUMENTS} wrong "
        f"arguments or settings; {NO_QUORUM} too few masters to tell whether it is running; of "
        "several the worst."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "keys",
            metavar="KEY_HASH_PREFIX",
            nargs="*",
            type=_beginning,
            help="the first digits, 8 or more, of the hash of a key, which the admin and the log "
            "show; of records in a cache all 64",
        )
        verdict = parser.add_mutually_exclusive_group()
        verdict.add_argument(
            "--applied", action="store_true", help="it took effect: it is never run again"
        )
        verdict.add_argument(
            "--not-applied", action="store_true", help="it did not: its key is free, a retry runs"
        )
        parser.add_argument(
            "--store", choices=("database", "cache"), help="where to look, if not in STORE"
        )
        parser.add_argument(
            "--noinput",
            "--no-input",
            action="store_false",
            dest="interactive",
            help="do not ask",
        )
        parser.add_argument("--by", default="", metavar="NAME", help="who you are, for the log")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the records, ask, record what was said, and say what came of it."""
        keys: list[str] = list(dict.fromkeys(options["keys"]))
        verdict = options["applied"] or options["not_applied"]
        if verdict and not keys:
            raise CommandError("Which one? Give a KEY_HASH_PREFIX.", returncode=BAD_ARGUMENTS)
        if verdict and options["interactive"] and not sys.stdin.isatty():
            problem = "There is no terminal to ask on: add --noinput."
            raise CommandError(problem, returncode=BAD_ARGUMENTS)
        store, aliases = kept_by(options["using"], options["store"])
        try:
            found = self._found(store, keys)
            if verdict:
                results = [self._resolved(one, store, aliases, options) for one in found]
            else:
                results = [self._looked_at(one, aliases) for one in found]
        except IdempotencyUnavailable as error:
            raise CommandError(f"{error} The log says why.", returncode=NOT_RESOLVED) from None
        self._write(results, options)
        if worst := max((STATUSES.get(result.outcome, 0) for result in results), default=0):
            problems = [f"{r.key}: {r.outcome}" for r in results if STATUSES.get(r.outcome)]
            raise CommandError("\n".join(problems), returncode=worst)

    def _found(self, store: Store, keys: list[str]) -> list[Result]:
        """Find one record for each beginning; nothing is done by halves."""
        if not keys:
            return [Result("", one.key_hash, one) for one in store.unsettled()]
        results = []
        for key in keys:
            every = store.unsettled(key)
            if len(every) > 1:
                problem = f"{len(every)} records begin with {key}: give more of its digits."
                raise CommandError(problem, returncode=BAD_ARGUMENTS)
            results += [Result("", one.key_hash, one) for one in every] or [Result(UNKNOWN, key)]
        return results

    def _looked_at(self, one: Result, aliases: list[str]) -> Result:
        if one.record is None or one.record.state is not RecordState.RUNNING:
            return one._replace(outcome=one.outcome or RecordState.UNCERTAIN.value)
        running = is_running(one.record.key_hash, aliases)
        words = {True: "in flight", False: "interrupted", None: "in flight or interrupted"}
        return one._replace(outcome=words[running])

    def _resolved(
        self, one: Result, store: Store, aliases: list[str], options: Mapping[str, Any]
    ) -> Result:
        if one.record is None:
            return one
        if options["interactive"] and not self._agreed(one.record, options["applied"]):
            return one._replace(outcome=DECLINED)
        outcome = resolve(
            store,
            one.record,
            applied=options["applied"],
            by=whoever(options["by"]),
            aliases=aliases,
        )
        return one._replace(outcome=outcome.value)

    def _agreed(self, record: Unsettled, applied: bool) -> bool:
        """Show the request and ask; all on stderr, since stdout is for data."""
        self.warn(f"{record.method} {printable(record.path)}, user {record.user or 'none'}")
        self.warn(f"  {record.key_hash}, since {_iso(record) or '?'}")
        says = (
            "It took effect: it is never run again."
            if applied
            else "It did not take effect: a retry runs. If it did, it does so twice."
        )
        return self.asked(f"{says}\nType 'yes' to record that: ")

    def _write(self, results: list[Result], options: Mapping[str, Any]) -> None:
        if self.as_json:
            every = [_described(result) for result in results]
            self.write_json({"using": options["using"], "at": iso(time.time()), "records": every})
            return
        rows = [[str(said or "") for said in _described(result).values()] for result in results]
        heads = ("KEY", "STATE", "METHOD", "PATH", "USER", "SINCE")
        self.write_table(heads, rows, flexible=(3, 4))


def _described(result: Result) -> dict[str, Any]:
    record = result.record
    return {
        "key_hash": result.key,
        "outcome": result.outcome,
        "method": record and record.method,
        "path": record and record.path,
        "user": record and record.user,
        "since": record and _iso(record),
    }


def _iso(record: Unsettled) -> str | None:
    return iso(record.created.timestamp()) if record.created else None


def _beginning(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8,64}", text):
        raise ArgumentTypeError("must be 8 to 64 hex digits: the beginning of a key's hash")
    return text
