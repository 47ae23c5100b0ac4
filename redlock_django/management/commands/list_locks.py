"""`manage.py list_locks`: list the held locks with their holders, masters and remaining TTL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.inspection.holders import Holding, HoldingState
from redlock_django.management.operator_command import (
    OperatorCommand,
    holder_summary,
    iso,
    lock_document,
    whole_number,
)
from redlock_django.management.single_run import NO_QUORUM, UsageError
from redlock_django.operate.health import server_word
from redlock_django.operate.inspection import MAX_LISTED, ORDERS, HeldLocks, held_locks

_DAY = 86_400
_CLEAR = "\x1b[H\x1b[J"  # Move the cursor home and erase the screen below it.


def sleep(seconds: float) -> None:
    """Sleep between two listings, as `time.sleep` does; tests replace it."""
    time.sleep(seconds)


class Command(OperatorCommand):
    """Exit status 0: listed, even if there are none. 2: usage. 3: too few servers answered."""

    help = (
        "List the locks that are held on the servers. Exit status: 0, also if no lock is held; "
        f"2 for wrong arguments or settings; {NO_QUORUM} if too few servers answered."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--search", default="", metavar="TEXT", help="only resources whose name contains TEXT")
        add(
            "--prefix",
            default="",
            metavar="TEXT",
            help="only resources whose name begins with TEXT",
        )
        add(
            "--holder",
            default="",
            metavar="WORDS",
            help="only locks of a holder whose description has all WORDS: a process id, a user id, "
            "or a part of the host, app or path",
        )
        add(
            "--state",
            choices=[state.value for state in HoldingState],
            help="only locks in this state",
        )
        add(
            "--scan",
            action="store_true",
            help="scan every key on the masters; this also finds locks of other programs that are "
            "not in the index",
        )
        self._add_paging(parser)

    def _add_paging(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--order",
            choices=[order for order in ORDERS if not order.startswith("-")],
            default="ttl",
            help="by remaining TTL (the default), by name, by age or by holder",
        )
        add("--reverse", action="store_true", help="reverse the order")
        add(
            "--limit",
            type=whole_number(1),
            default=100,
            metavar="N",
            help="list at most N locks (default: 100)",
        )
        add("--offset", type=whole_number(0), default=0, metavar="N", help="skip the first N locks")
        add(
            "--all",
            action="store_true",
            dest="every",
            help=f"list all locks that are read: {MAX_LISTED} at most",
        )
        add(
            "--watch",
            type=float,
            nargs="?",
            const=2.0,
            metavar="SECONDS",
            help="repeat every SECONDS (default: 2) until Ctrl-C; JSON is written as one line each",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List once, or repeatedly until Ctrl-C."""
        interval = options["watch"]
        if interval is None:
            page = self._list(options)
            if not page.complete:
                raise CommandError(_too_few(page), returncode=NO_QUORUM)
            return
        if not 0 < interval < _DAY:
            raise UsageError("--watch: SECONDS must be above 0 and less than a day.")
        try:
            while True:
                page = self._list(options)
                if not page.complete:
                    self.warn(_too_few(page))
                self.stdout.flush()
                sleep(interval)
        except KeyboardInterrupt:
            return

    def _list(self, options: dict[str, Any]) -> HeldLocks:
        page = held_locks(
            options["using"],
            search=options["search"],
            prefix=options["prefix"],
            holder=options["holder"],
            state=None if options["state"] is None else HoldingState(options["state"]),
            order=("-" if options["reverse"] else "") + options["order"],
            scan=options["scan"],
        )
        start = options["offset"]
        locks = page.locks if options["every"] else page.locks[start : start + options["limit"]]
        watched = options["watch"] is not None
        if self.as_json:
            self.write_json(_document(page, locks), indent=None if watched else 2)
        else:
            if watched:
                self._head(page)
            has_slots = any(holding.slot is not None for holding in locks)
            self.write_table(
                _heads(page.using, has_slots),
                [_row(holding, page, has_slots) for holding in locks],
                flexible=(0, 7 + has_slots),
            )
        self._notes(page, len(locks))
        return page

    def _head(self, page: HeldLocks) -> None:
        if self.stdout.isatty():
            self.stdout.write(_CLEAR, ending="")
        self.stdout.write(f"{iso(time.time())}  {page.using}  {len(page.locks)} held")

    def _notes(self, page: HeldLocks, listed: int) -> None:
        self.warn_of_silent(page.silent)
        for name, held in page.slots.items():
            if len(held.limits) > 1:
                limits = ", ".join(map(str, held.limits))
                self.warn(f"The holders of {name} have different limits: {limits} (1: a lock).")
        if page.truncated:
            self.warn(
                f"More than {MAX_LISTED} locks are held. Those that expire first were read, and "
                "the one that has the whole name of --search or --prefix."
            )
        if listed < (total := len(page.locks)):
            self.warn(f"{listed} of {total} locks are listed. See --offset, --limit and --all.")
        elif not page.locks and not self.as_json and page.complete:
            self.warn("No lock is held.")


def _document(page: HeldLocks, locks: Sequence[Holding]) -> dict[str, Any]:
    return {
        "using": page.using,
        "at": iso(time.time()),
        "masters": list(page.servers),
        "silent": dict(page.silent),
        "quorum": page.complete,
        "total": len(page.locks),
        "truncated": page.truncated,
        "locks": [lock_document(holding) for holding in locks],
    }


def _row(holding: Holding, page: HeldLocks, has_slots: bool) -> tuple[str, ...]:
    slot = (_slot(holding, page),) if has_slots else ()
    return (
        holding.name,
        *slot,
        _state(holding),
        f"{len(holding.leading)}/{len(holding.servers)}",
        "no expiry" if holding.ttl is None else f"{holding.ttl:.1f} s",
        _moment(holding.since),
        str(holding.waiters),
        holding.fingerprint,
        holder_summary(holding.holder),
    )


def _slot(holding: Holding, page: HeldLocks) -> str:
    """Return the slot, and how many of its name are held: "1 (2/3 held)"; "" for a lock."""
    if holding.slot is None:
        return ""
    held = page.slots.get(holding.name)
    return f"{holding.slot} ({held} held)" if held else str(holding.slot)


def _state(holding: Holding) -> str:
    state, until = holding.state.value, holding.minimum_hold_until
    if holding.handed_on:
        state += ", handed on, not yet taken"
    if until is None or until < time.time():
        return state
    return f"{state}, minimum hold until {_moment(until)[11:]}"


def _moment(seconds: float | None) -> str:
    return (iso(seconds) or "?").partition(".")[0].replace("T", " ")


def _heads(using: str, has_slots: bool) -> tuple[str, ...]:
    servers = f"{server_word(using)}s".upper()
    slot = ("SLOT",) if has_slots else ()
    return ("RESOURCE", *slot, "STATE", servers, "TTL", "SINCE", "WAITERS", "LOCK", "HOLDER")


def _too_few(page: HeldLocks) -> str:
    every = len(page.servers)
    return (
        f"Only {every - len(page.silent)} of {every} {server_word(page.using)}s answered, too few "
        "to know which locks are held."
    )
