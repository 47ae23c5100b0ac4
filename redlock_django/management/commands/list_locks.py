"""`manage.py list_locks`: list the held locks with their holders, masters and remaining TTL."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.inspection.holders import Holding
from redlock_django.management.operator_command import (
    OperatorCommand,
    add_format,
    holder_summary,
    iso,
)
from redlock_django.management.single_run import NO_QUORUM, UsageError
from redlock_django.operate.health import server_word
from redlock_django.operate.inspection import MAX_LISTED, HeldLocks, held_locks


class Command(OperatorCommand):
    """Exit status 0: listed, even if there are none. 2: usage. 3: too few servers answered."""

    help = (
        "List the locks that are held on the servers, first those that expire first. Exit status: "
        "0, also if no lock is held; 2 for wrong arguments or settings; "
        f"{NO_QUORUM} if too few servers answered."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_format(parser)
        add = parser.add_argument
        add("--search", default="", metavar="TEXT", help="a part of the name or of the holder")
        add(
            "--limit",
            type=int,
            default=100,
            metavar="N",
            help="list at most N locks (default: 100)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List the locks, and say what the list lacks."""
        if options["limit"] < 1:
            raise UsageError(f"--limit must be 1 or more, got {options['limit']}.")
        page = held_locks(options["using"], search=options["search"], limit=options["limit"])
        word = server_word(page.using)
        if options["format"] == "json":
            self.write_json(_document(page))
        else:
            self.write_table(
                ("RESOURCE", "STATE", f"{word.upper()}S", "TTL", "SINCE", "WAITERS", "LOCK",
                 "HOLDER"),
                (_row(holding, page) for holding in page.locks),
            )  # fmt: skip
        self.warn_of_silent(page.silent)
        self._say_what_is_odd(page)
        if not page.complete:
            every = len(page.servers)
            problem = (
                f"Only {every - len(page.silent)} of {every} {word}s answered, too few to know "
                "which locks are held."
            )
            raise CommandError(problem, returncode=NO_QUORUM)
        if not page.locks and options["format"] == "table":
            self.warn("No lock is held.")

    def _say_what_is_odd(self, page: HeldLocks) -> None:
        for name, held in page.slots.items():
            if len(held.limits) > 1:
                limits = ", ".join(map(str, held.limits))
                self.warn(f"The holders of {name} have different limits: {limits} (1: a lock).")
        if page.truncated:
            self.warn(
                f"More than {MAX_LISTED} locks are held. Those that expire first were read, and "
                "the one that has the whole name of --search."
            )
        if len(page.locks) < page.count:
            shown = f"{len(page.locks)} of {page.count} locks are listed."
            self.warn(f"{shown} See --limit and --search.")


def _document(page: HeldLocks) -> dict[str, Any]:
    return {
        "using": page.using,
        "at": iso(time.time()),
        "masters": list(page.servers),
        "silent": dict(page.silent),
        "quorum": page.complete,
        "total": page.count,
        "truncated": page.truncated,
        "locks": [_described(holding) for holding in page.locks],
    }


def _described(holding: Holding) -> dict[str, Any]:
    return {
        "resource": holding.name,
        "slot": holding.slot,
        "limit": holding.limit,
        "state": holding.state.value,
        "fingerprint": holding.fingerprint,
        "ttl": None if holding.ttl is None else round(holding.ttl, 3),
        "since": iso(holding.since),
        "minimum_hold_until": iso(holding.minimum_hold_until),
        "handed_on": holding.handed_on,
        "holder": dict(holding.holder),
        "waiters": holding.waiters,
        "masters": [sighting.server for sighting in holding.leading],
        "rivals": {rival.server: rival.fingerprint for rival in holding.rivals},
    }


def _row(holding: Holding, page: HeldLocks) -> tuple[str, ...]:
    held = None if holding.slot is None else page.slots.get(holding.name)
    return (
        f"{holding.label} ({held} held)" if held else holding.label,
        _state(holding),
        f"{len(holding.leading)}/{len(holding.servers)}",
        "no expiry" if holding.ttl is None else f"{holding.ttl:.1f} s",
        _moment(holding.since),
        str(holding.waiters),
        holding.fingerprint,
        holder_summary(holding.holder),
    )


def _state(holding: Holding) -> str:
    state, until = holding.state.value, holding.minimum_hold_until
    if holding.handed_on:
        state += ", handed on, not yet taken"
    if until is None or until < time.time():
        return state
    return f"{state}, minimum hold until {_moment(until)[11:]}"


def _moment(seconds: float | None) -> str:
    return (iso(seconds) or "?").partition(".")[0].replace("T", " ")
