"""`manage.py resolve_idempotency`: record the outcome of an interrupted request."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.exceptions import IdempotencyRefused
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.resolve import (
    ResolveOutcome,
    is_running,
    resolve,
    store_and_aliases,
)
from redlock_django.locking.names import printable
from redlock_django.management.operator_command import (
    OperatorCommand,
    add_noinput,
    iso,
    operator_name,
)
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM, UsageError
from redlock_django.models import IdempotencyRecord

NOT_RESOLVED = 1


class Command(OperatorCommand):
    """Exit status 0: resolved or shown. 1: not resolved. 2: usage. 3: no quorum."""

    help = (
        "Record whether an interrupted request took effect. Without --applied or --not-applied, "
        "show the unresolved requests and change nothing. Exit status: 0 resolved or shown; "
        f"{NOT_RESOLVED} not found, running, already resolved, or declined; {BAD_ARGUMENTS} wrong "
        f"arguments or settings; {NO_QUORUM} too few servers answered to find out whether the "
        "request is running."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "key",
            metavar="KEY_HASH_PREFIX",
            nargs="?",
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
        add_noinput(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the records, or ask for confirmation and resolve the one that is named."""
        key, resolves = options["key"] or "", options["applied"] or options["not_applied"]
        if resolves and not key:
            problem = "--applied and --not-applied require a KEY_HASH_PREFIX."
            raise UsageError(problem)
        store, aliases = store_and_aliases(options["using"])
        try:
            found = store.unresolved(key)
            if key and not found:
                problem = f"No unresolved request has a key hash that begins with {key}."
                raise CommandError(problem, returncode=NOT_RESOLVED)
            if not resolves:
                self._show(found, aliases)
                return
            if len(found) > 1:
                problem = f"{len(found)} records begin with {key}. Add more digits."
                raise UsageError(problem)
            [record], applied = found, options["applied"]
            if options["interactive"] and not self._is_confirmed(record, applied):
                problem = f"{record.key_hash}: declined"
                raise CommandError(problem, returncode=NOT_RESOLVED)
            outcome = resolve(store, record, applied=applied, by=operator_name(), aliases=aliases)
        except IdempotencyRefused as error:
            problem = f"{error} The reason is in the log."
            raise CommandError(problem, returncode=NOT_RESOLVED) from None
        if outcome is not ResolveOutcome.RESOLVED:
            status = NO_QUORUM if outcome is ResolveOutcome.NO_QUORUM else NOT_RESOLVED
            raise CommandError(f"{record.key_hash}: {outcome.value}", returncode=status)
        self.stderr.write(f"{record.key_hash}: {outcome.value}")

    def _show(self, records: list[IdempotencyRecord], aliases: list[str]) -> None:
        if not records:
            self.warn("No request is unresolved.")
        self.write_table(
            ("KEY", "STATE", "METHOD", "PATH", "USER", "SINCE"),
            (
                (
                    record.key_hash,
                    _state(record, aliases),
                    record.method,
                    record.path,
                    record.user,
                    iso(record.created_at.timestamp()) or "",
                )
                for record in records
            ),
        )

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


def _state(record: IdempotencyRecord, aliases: list[str]) -> str:
    if record.state != RecordState.RUNNING:
        return RecordState.UNCERTAIN.value
    words = {True: "in flight", False: "interrupted", None: "in flight or interrupted"}
    return words[is_running(record.key_hash, aliases)]


def _hash_prefix(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8,64}", text):
        raise ArgumentTypeError("must be 8 to 64 hex digits: the beginning of a key's hash")
    return text
