"""`manage.py resolve_idempotency`: record the outcome of interrupted requests."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser

from redlock_django.exceptions import IdempotencyUnavailable
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import RecordStore
from redlock_django.idempotency.resolve import (
    ResolveOutcome,
    is_running,
    resolve,
    store_and_aliases,
)
from redlock_django.locking.names import printable
from redlock_django.management.operator_command import OperatorCommand, iso, operator_name
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM, UsageError
from redlock_django.models import IdempotencyRecord

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
"""The exit status for each outcome. For several records, the highest one is used."""


class Resolution(NamedTuple):
    """The outcome for one hash prefix: one of STATUSES, or the state of its record."""

    outcome: str
    key: str
    record: IdempotencyRecord | None = None


class Command(OperatorCommand):
    """Exit status 0: all resolved or shown. 1: one was not resolved. 2: usage. 3: no quorum."""

    help = (
        "Record whether interrupted requests took effect. Without --applied or --not-applied, "
        "show the unresolved requests and change nothing. Exit status: 0 resolved; "
        f"{NOT_RESOLVED} not found, running, already resolved, or declined; {BAD_ARGUMENTS} wrong "
        f"arguments or settings; {NO_QUORUM} too few servers answered to find out whether the "
        "request is running. For several records, the highest status is returned."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add(
            "keys",
            metavar="KEY_HASH_PREFIX",
            nargs="*",
            type=_hash_prefix,
            help="at least the first 8 digits of the key hash, which the admin and the log show",
        )
        verdict = parser.add_mutually_exclusive_group()
        verdict.add_argument(
            "--applied",
            action="store_true",
            help="the request took effect: it is never processed again",
        )
        verdict.add_argument(
            "--not-applied",
            action="store_true",
            help="the request did not take effect: a retry with its key is processed",
        )
        self.add_confirmation(parser, by="the log")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the records, or ask for confirmation, resolve them and write the results."""
        keys: list[str] = list(dict.fromkeys(options["keys"]))
        verdict = options["applied"] or options["not_applied"]
        if verdict and not keys:
            problem = "--applied and --not-applied require a KEY_HASH_PREFIX."
            raise UsageError(problem)
        if verdict and options["interactive"]:
            self.require_terminal()
        store, aliases = store_and_aliases(options["using"])
        try:
            found = self._find(store, keys)
            if verdict:
                results = [self._resolve(one, store, aliases, options) for one in found]
            else:
                results = [self._inspected(one, aliases) for one in found]
        except IdempotencyUnavailable as error:
            problem = f"{error} The reason is in the log."
            raise CommandError(problem, returncode=NOT_RESOLVED) from None
        self._write(results, options)
        if worst := max((STATUSES.get(result.outcome, 0) for result in results), default=0):
            problems = [f"{r.key}: {r.outcome}" for r in results if STATUSES.get(r.outcome)]
            raise CommandError("\n".join(problems), returncode=worst)

    def _find(self, store: RecordStore, keys: list[str]) -> list[Resolution]:
        """Return one result for each hash prefix; raise UsageError if one cannot be looked up."""
        if not keys:
            return [Resolution("", one.key_hash, one) for one in store.unresolved()]
        results = []
        for key in keys:
            every = store.unresolved(key)
            if len(every) > 1:
                problem = f"{len(every)} records begin with {key}. Add more digits."
                raise UsageError(problem)
            results += [Resolution("", one.key_hash, one) for one in every] or [
                Resolution(UNKNOWN, key)
            ]
        return results

    def _inspected(self, one: Resolution, aliases: list[str]) -> Resolution:
        if one.record is None or one.record.state != RecordState.RUNNING:
            return one._replace(outcome=one.outcome or RecordState.UNCERTAIN.value)
        running = is_running(one.record.key_hash, aliases)
        words = {True: "in flight", False: "interrupted", None: "in flight or interrupted"}
        return one._replace(outcome=words[running])

    def _resolve(
        self, one: Resolution, store: RecordStore, aliases: list[str], options: Mapping[str, Any]
    ) -> Resolution:
        if one.record is None:
            return one
        if options["interactive"] and not self._is_confirmed(one.record, options["applied"]):
            return one._replace(outcome=DECLINED)
        outcome = resolve(
            store,
            one.record,
            applied=options["applied"],
            by=operator_name(options["by"]),
            aliases=aliases,
        )
        return one._replace(outcome=outcome.value)

    def _is_confirmed(self, record: IdempotencyRecord, applied: bool) -> bool:
        """Show the request and ask for confirmation on stderr, because stdout is for data."""
        self.warn(f"{record.method} {printable(record.path)}, user {record.user or 'none'}")
        self.warn(f"  {record.key_hash}, since {iso(record.created_at.timestamp())}")
        effect = (
            "The request took effect and is never processed again."
            if applied
            else "The request did not take effect, and a retry is processed. If it did take "
            "effect, it then takes effect twice."
        )
        return self.confirm(f"{effect}\nType 'yes' to record this: ")

    def _write(self, results: list[Resolution], options: Mapping[str, Any]) -> None:
        if self.as_json:
            every = [_described(result) for result in results]
            self.write_json({"using": options["using"], "at": iso(time.time()), "records": every})
            return
        rows = [[str(value or "") for value in _described(result).values()] for result in results]
        if not results:
            self.warn("No request is unresolved.")
            return
        heads = ("KEY", "STATE", "METHOD", "PATH", "USER", "SINCE")
        self.write_table(heads, rows, flexible=(3, 4))


def _described(result: Resolution) -> dict[str, Any]:
    record = result.record
    return {
        "key_hash": result.key,
        "outcome": result.outcome,
        "method": record and record.method,
        "path": record and record.path,
        "user": record and record.user,
        "since": record and iso(record.created_at.timestamp()),
    }


def _hash_prefix(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8,64}", text):
        raise ArgumentTypeError("must be 8 to 64 hex digits: the beginning of a key's hash")
    return text
