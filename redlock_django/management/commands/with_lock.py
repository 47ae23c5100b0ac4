"""`manage.py with_lock KEY -- COMMAND`: run a program while holding a lock."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import LockLost
from redlock_django.management.child_process import ChildProcess
from redlock_django.management.single_run import (
    LOCK_HELD,
    LOCK_LOST,
    NO_QUORUM,
    add_using,
    enter_lock,
)


class Command(BaseCommand):
    """Exit status: the command's own, 128+n if signal n ended it, or one of those in `help`."""

    help = (
        "Run COMMAND while holding the lock KEY, which is renewed, and exit with the status of "
        f"COMMAND, or with {LOCK_HELD} if another client holds the lock, {NO_QUORUM} if too few "
        f"masters answered, {LOCK_LOST} if the lock was lost, unless COMMAND has failed by itself. "
        "If this process dies, Linux kills COMMAND. Only COMMAND writes to stdout."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("key", metavar="KEY", help="the resource to lock")
        add("command", metavar="COMMAND", nargs="+", help="the program and its arguments, after --")
        add_using(parser)
        add("--ttl", type=float, metavar="SECONDS", help="the TTL of the lock (default: TTL)")
        add("--wait", type=float, metavar="SECONDS", help="how long to wait for a held lock")
        add(
            "--min-hold",
            type=float,
            metavar="SECONDS",
            help="keep the lock for at least that long, also if COMMAND ends earlier: for cron, "
            "more than the clocks of the machines differ",
        )
        add("--limit", type=int, metavar="N", help="let N clients hold KEY at once (default: 1)")
        add(
            "--skip",
            action="store_true",
            help=f"if another client holds the lock, exit silently with 0, not with {LOCK_HELD}",
        )
        add("--keep-going", action="store_true", help="keep COMMAND running if the lock is lost")

    def handle(self, *args: Any, **options: Any) -> None:
        """Acquire the lock, run the command, and exit with its status."""
        child, keeps_going = ChildProcess(options["command"]), options["keep_going"]
        status: int | None = 0
        try:
            with child.forwarding_signals(), ExitStack() as stack:
                held = enter_lock(
                    stack,
                    options["key"],
                    skip=options["skip"],
                    using=options["using"],
                    ttl=options["ttl"],
                    wait=options["wait"],
                    min_hold=options["min_hold"],
                    limit=options["limit"],
                    renew=True,
                )
                if held is None:
                    return
                status, lost = child.run_under(held, self._go_on if keeps_going else None)
                if lost:
                    problem = f"{lost}; the command was terminated"
                    raise CommandError(problem, returncode=LOCK_LOST)
        except LockLost as error:  # found by the release: COMMAND has ended by itself
            if not (status or keeps_going):
                raise CommandError(str(error), returncode=LOCK_LOST) from None
            if not keeps_going:
                self.stderr.write(str(error))
        # After the release. SystemExit instead of CommandError, because there is no message.
        if status:
            sys.exit(status)

    def _go_on(self, lost: str) -> None:
        self.stderr.write(f"{lost}; the command continues without it")
