"""`manage.py list_locks`: who holds what, on which masters, and for how long still."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.engine.holders import Holding, HoldingState
from redlock_django.management.operating import OperatorCommand, described, iso, person
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM
from redlock_django.operate.inspection import MAX_LISTED, HeldLocks, held_locks

sleep = time.sleep
_DAY = 86_400
_CLEAR = "\x1b[H\x1b[J"  # home, and erase what is below


class Command(OperatorCommand):
    """Exit status 0: these are the locks, if any. 2: usage. 3: too few masters answered."""

    help = (
        "List the locks that are held on the masters. Exit status: 0, also where nothing is held; "
        f"2 for wrong arguments or settings; {NO_QUORUM} if too few masters answered to tell."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--search", default="", metavar="TEXT", help="only resources with this in their name"
        )
        parser.add_argument(
            "--state",
            choices=[state.value for state in HoldingState],
            help="only locks in this state",
        )
        parser.add_argument(
            "--order",
            choices=("ttl", "resource"),
            default="ttl",
            help="first what ends first (ttl, the default), or by name",
        )
        parser.add_argument("--reverse", action="store_true", help="the other way round")
        parser.add_argument(
            "--limit",
            type=_number(1),
            default=100,
            metavar="N",
            help="so many locks at most (100 if left out)",
        )
        parser.add_argument(
            "--offset", type=_number(0), default=0, metavar="N", help="without the first N"
        )
        parser.add_argument(
            "--all",
            action="store_true",
            dest="every",
            help=f"as many as can be listed, {MAX_LISTED} if nothing is searched",
        )
        parser.add_argument(
            "--scan",
            action="store_true",
            help="look at every key of the masters: this also finds locks of other clients that "
            "nobody of ours has met",
        )
        parser.add_argument(
            "--watch",
            type=float,
            nargs="?",
            const=2.0,
            metavar="SECONDS",
            help="list again and again (every 2 s if left out) until Ctrl-C; JSON in one line each",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List once, or until Ctrl-C."""
        every = options["watch"]
        if every is None:
            page = self._list(options)
            if not page.complete:
                raise CommandError(_too_few(page), returncode=NO_QUORUM)
            return
        if not 0 < every < _DAY:
            raise CommandError(
                "--watch needs seconds, above 0 and less than a day", returncode=BAD_ARGUMENTS
            )
        try:
            while True:
                page = self._list(options)
                if not page.complete:
                    self.warn(_too_few(page))
                self.stdout.flush()
                sleep(every)
        except KeyboardInterrupt:
            return

    def _list(self, options: dict[str, Any]) -> HeldLocks:
        page = held_locks(
            options["using"],
            search=options["search"],
            state=None if options["state"] is None else HoldingState(options["state"]),
            order=("-" if options["reverse"] else "") + options["order"],
            offset=0 if options["every"] else options["offset"],
            limit=MAX_LISTED if options["every"] else options["limit"],
            scan=options["scan"],
        )
        watched = options["watch"] is not None
        if self.as_json:
            self.write_json(_document(page), indent=None if watched else 2)
        else:
            if watched:
                self._head(page)
            self.write_table(
                ("RESOURCE", "STATE", "MASTERS", "TTL", "SINCE", "LOCK", "HOLDER"),
                map(_row, page.locks),
                flexible=(0, 6),
            )
        self._notes(page)
        return page

    def _head(self, page: HeldLocks) -> None:
        if self.stdout.isatty():
            self.stdout.write(_CLEAR, ending="")
        self.stdout.write(f"{iso(time.time())}  {page.using}  {page.total} held")

    def _notes(self, page: HeldLocks) -> None:
        self.warn_of_silent(page.silent)
        if page.stopped_at is not None:
            self.warn(f"stopped at {page.stopped_at}: there may be more")
        elif page.total > len(page.locks):
            self.warn(f"{len(page.locks)} of {page.total}: see --offset, --limit and --all")
        elif not page.locks and not self.as_json and page.complete:
            self.warn("nothing is held")


def _document(page: HeldLocks) -> dict[str, Any]:
    return {
        "using": page.using,
        "at": iso(time.time()),
        "masters": list(page.servers),
        "silent": dict(page.silent),
        "quorum": page.complete,
        "total": page.total,
        "stopped_at": page.stopped_at,
        "locks": [described(holding) for holding in page.locks],
    }


def _row(holding: Holding) -> tuple[str, ...]:
    return (
        holding.resource,
        holding.state.value,
        f"{len(holding.leading)}/{len(holding.servers)}",
        "never ends" if holding.ttl is None else f"{holding.ttl:.1f} s",
        (iso(holding.since) or "?").partition(".")[0].replace("T", " "),
        holding.fingerprint,
        person(holding.holder),
    )


def _too_few(page: HeldLocks) -> str:
    masters = len(page.servers)
    return (
        f"only {masters - len(page.silent)} of {masters} masters answered, "
        "too few to tell what is held"
    )


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ArgumentTypeError(f"must be a whole number, {least} or more")
        return int(text)

    return number
