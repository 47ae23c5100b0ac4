"""`manage.py with_lock KEY -- COMMAND`: run a program while holding a lock."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import LockLost, StoreUnavailable
from redlock_django.locking.lock import Lock
from redlock_django.management.child_process import GRACE, MARGIN, ChildProcess
from redlock_django.management.single_run import (
    LOCK_HELD,
    LOCK_LOST,
    NO_QUORUM,
    add_using,
    enter_lock,
)
from redlock_django.wire.clock import clock

LONGEST_GRACE = 10.0
"""The most seconds between SIGTERM and SIGKILL for a command whose lock is lost."""

_VERIFY_EVERY = 1.0  # seconds between questions to the masters, which notice a forced release
_RENEWED = 1 / 2
"""The part of the TTL that is left at least if renewals succeed. With less, renewals ask the
masters, and a question that takes long must not delay the end of the program."""


class Command(BaseCommand):
    """Exit status: the command's own, 128+n if signal n ended it, or one of those in `help`."""

    help = (
        "Run COMMAND while holding the lock KEY, which is renewed, and exit with the status of "
        f"COMMAND, or with {LOCK_HELD} if another client holds the lock, {NO_QUORUM} if too few "
        f"masters answered, {LOCK_LOST} if the lock was lost and COMMAND was terminated. If this "
        "process dies, Linux kills COMMAND. Only COMMAND writes to stdout."
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
        child = ChildProcess(options["command"])
        with ExitStack() as stack:
            stack.enter_context(self._reporting_loss(options["keep_going"]))
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

    @contextmanager
    def _reporting_loss(self, keep_going: bool) -> Iterator[None]:
        """Report a loss that is noticed when the lock is released: COMMAND has ended by then."""
        try:
            yield
        except LockLost as error:
            if not keep_going:
                raise CommandError(str(error), returncode=LOCK_LOST) from None

    def _run(self, child: ChildProcess, held: Lock, keep_going: bool) -> int:
        watch = _Watch(held)
        fence = None if held._unlocked else held.fence
        with child.running(min(LONGEST_GRACE, watch.ttl * GRACE), fence):
            while (status := child.wait()) is None:
                lost = watch.look()
                if not keep_going:
                    child.must_end_by(watch.until)
                    if child.is_due:
                        lost = lost or f"{held.resources[0]}: the lock was not renewed in time"
                if lost and not keep_going:
                    child.end()
                    problem = f"{lost}; the command was terminated"
                    raise CommandError(problem, returncode=LOCK_LOST)
                if lost:
                    self.stderr.write(f"{lost}; the command continues without it")
        return status


class _Watch:
    """Looks at a lock: whether it is lost, and until when a program may run under it.

    `until` is by `redlock_django.wire.clock`; it stays where it was when the lock is lost.
    """

    until = math.inf

    def __init__(self, held: Lock) -> None:
        self._held = held
        _, self.ttl, _ = held._parameters.resolve()
        self._verify_at = time.monotonic() + _VERIFY_EVERY
        self._is_lost = False

    def look(self) -> str:
        """Return how the lock has been lost since the last look, "" if it has not."""
        held = self._held
        if self._is_lost or held._unlocked:  # ON_UNAVAILABLE = "proceed"
            return ""
        try:
            held.ensure_held()
            if time.monotonic() >= self._verify_at and held.remaining() >= self.ttl * _RENEWED:
                with suppress(StoreUnavailable):  # the lock is held until its deadline
                    held.verify()
                self._verify_at = time.monotonic() + _VERIFY_EVERY
        except LockLost as error:
            self._is_lost = True
            return str(error)
        self.until = clock() + held.remaining() - self.ttl * MARGIN
        return ""
