"""`manage.py with_lock KEY -- COMMAND`: run a program while holding a lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

from django.core.management import get_commands
from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import LockLost, StoreUnavailable
from redlock_django.locking.lock import Lock
from redlock_django.management.single_run import (
    LOCK_HELD,
    LOCK_LOST,
    NO_QUORUM,
    add_using,
    enter_lock,
)

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in shells
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command whose lock was lost."""

_KILL_TIMEOUT = 10.0  # seconds that a killed process may take to end, in a system call for example
_POLL = 0.1
_VERIFY_EVERY = 1.0  # seconds between questions to the masters, which notice a forced release
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


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
        child = _Child(options["command"])
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in _FORWARDED:
                    if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                        before = signal.signal(number, child.forward)
                        stack.callback(signal.signal, number, before)
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

    def _run(self, child: _Child, held: Lock, keep_going: bool) -> int:
        child.start()
        watching = True
        verify_at = time.monotonic() + _VERIFY_EVERY
        while (status := child.wait(_POLL)) is None:
            try:
                if watching:
                    held.ensure_held()
                    if time.monotonic() >= verify_at:
                        with suppress(StoreUnavailable):  # the lock is held until its deadline
                            held.verify()
                        verify_at = time.monotonic() + _VERIFY_EVERY
            except LockLost as error:
                watching = False
                if not keep_going:
                    child.end()
                    raise CommandError(
                        f"{error}; the command was terminated", returncode=LOCK_LOST
                    ) from None
                self.stderr.write(f"{error}; the command continues without it")
        return status


class _Child:
    """The process of the command, and the signals to forward to it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._early: list[int] = []
        # In a separate process group the command can be ended with all its children. On a terminal
        # that is not possible: only the foreground group may read from it and receives Ctrl-C.
        self._grouped = not sys.stdin.isatty()

    def start(self) -> None:
        self._starting = True
        try:
            self._process = subprocess.Popen(
                self._command, process_group=0 if self._grouped else None
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            hint = ""
            if missing and self._command[0] in get_commands():
                hint = f". For the management command, write: python manage.py {self._command[0]}"
            raise CommandError(
                f"{self._command[0]}: {error.strerror}{hint}",
                returncode=NOT_FOUND if missing else NOT_EXECUTABLE,
            ) from None
        for number in self._early:
            self._send(number)

    def forward(self, number: int, frame: object) -> None:
        if self._process is not None:
            if self._grouped or number not in (signal.SIGINT, signal.SIGQUIT):
                self._send(number)
        elif self._starting:
            # An exception at this point would leave a process that nothing ends.
            self._early.append(number)
        else:
            raise SystemExit(128 + number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status as a shell does, or None if it still runs after `seconds`."""
        assert self._process is not None
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return 128 - status if status < 0 else status

    def end(self) -> None:
        self._send(signal.SIGTERM)
        if self.wait(GRACE) is None:
            self._send(signal.SIGKILL)
            self.wait(_KILL_TIMEOUT)

    def _send(self, number: int) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            (os.killpg if self._grouped else os.kill)(self._process.pid, number)
