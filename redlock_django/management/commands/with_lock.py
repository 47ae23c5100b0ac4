"""`manage.py with_lock KEY -- COMMAND`: run a program while holding a lock."""

from __future__ import annotations

import math
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import LockLost, StoreUnavailable
from redlock_django.locking.lock import Lock
from redlock_django.management.child_process import ChildProcess
from redlock_django.management.keeper import clock
from redlock_django.management.single_run import (
    LOCK_HELD,
    LOCK_LOST,
    NO_QUORUM,
    add_using,
    enter_lock,
)

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command whose lock was lost."""

_POLL = 0.1
_VERIFY_EVERY = 1.0  # seconds between questions to the masters, which notice a forced release
_MARGIN = 0.5  # seconds between the death of a command that lost its supervisor and the lock's end


class Command(BaseCommand):
    """Exit status: the command's own, 128+n if signal n ended it, or one of those in `help`."""

    help = (
        "Run COMMAND while holding the lock KEY, which is renewed, and exit with the status of "
        f"COMMAND, or with {LOCK_HELD} if another client holds the lock, {NO_QUORUM} if too few "
        f"masters answered, {LOCK_LOST} if the lock was lost and COMMAND was terminated. Only "
        "COMMAND writes to stdout."
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
        child = ChildProcess(options["command"], grace=GRACE)
        with ExitStack() as stack:
            stack.enter_context(child.forwarding_signals())
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
            status = self._run(child, held, options["keep_going"])
        # After the release. SystemExit instead of CommandError, because there is no message.
        if status:
            sys.exit(status)

    def _run(self, child: ChildProcess, held: Lock, keep_going: bool) -> int:
        child.start(until=_deadline(held))
        watching = True
        verify_at = time.monotonic() + _VERIFY_EVERY
        while (status := child.wait(_POLL)) is None:
            try:
                if watching:
                    held.ensure_held()
                    child.must_end_by(_deadline(held))
                    if time.monotonic() >= verify_at:
                        with suppress(StoreUnavailable):  # the lock is held until its deadline
                            held.verify()
                        verify_at = time.monotonic() + _VERIFY_EVERY
            except LockLost as error:
                watching = False
                child.must_end_by(math.inf)
                if not keep_going:
                    child.end()
                    raise CommandError(
                        f"{error}; the command was terminated", returncode=LOCK_LOST
                    ) from None
                self.stderr.write(f"{error}; the command continues without it")
        return status


def _deadline(held: Lock) -> float:
    """Return when a command must have ended whose supervisor has died."""
    if not held.locked:  # ON_UNAVAILABLE = "proceed"
        return math.inf
    return clock() + held.remaining() - _MARGIN
