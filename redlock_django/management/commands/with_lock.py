"""`manage.py with_lock KEY -- COMMAND`: run any program under a lock, on one machine of many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redlock_django.exceptions import LockLost
from redlock_django.locking.lock import Lock
from redlock_django.management.single_run import LOCK_HELD, LOCK_LOST, NO_QUORUM, take

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as shells say it
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command whose lock was lost."""

_GONE = 10.0  # seconds that a killed process may take to go: it may be deep in the kernel
_POLL = 0.1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Command(BaseCommand):
    """Exit status: the command's own, 128+n if signal n ended it, or one of those in `help`."""

    help = (
        "Run COMMAND while holding the lock KEY, which is renewed meanwhile, and pass its exit "
        "status on. "
        f"{LOCK_HELD}: somebody else holds the lock. {NO_QUORUM}: too few masters. "
        f"{LOCK_LOST}: the lock was lost, and COMMAND was terminated. "
        "Nothing but COMMAND writes to stdout."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", metavar="KEY", help="the resource to lock")
        parser.add_argument(
            "command", metavar="COMMAND", nargs="+", help="the program and its arguments, after --"
        )
        parser.add_argument(
            "--using", default="default", metavar="ALIAS", help="the alias in REDLOCK"
        )
        parser.add_argument("--ttl", type=float, metavar="SECONDS", help="instead of TTL")
        parser.add_argument(
            "--wait", type=float, metavar="SECONDS", help="wait that long for a held lock"
        )
        parser.add_argument(
            "--skip",
            action="store_true",
            help=f"while somebody else holds the lock, exit quietly with 0, not with {LOCK_HELD}",
        )
        parser.add_argument(
            "--keep-going",
            action="store_true",
            help="let COMMAND run on if the lock is lost",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Take the lock, run the command, and exit with its status."""
        child = _Child(options["command"])
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in _FORWARDED:
                    if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                        before = signal.signal(number, child.forward)
                        stack.callback(signal.signal, number, before)
            held = take(
                stack,
                options["key"],
                skip=options["skip"],
                using=options["using"],
                ttl=options["ttl"],
                wait=options["wait"],
                renew=True,
            )
            if held is None:
                return
            status = self._run(child, held, options["keep_going"])
        # After the release. SystemExit, because only the command has something to say.
        if status:
            sys.exit(status)

    def _run(self, child: _Child, held: Lock, keep_going: bool) -> int:
        child.start()
        watching = True
        while (status := child.wait(_POLL)) is None:
            try:
                if watching:
                    held.ensure_held()
            except LockLost as error:
                watching = False
                if not keep_going:
                    child.end()
                    raise CommandError(
                        f"{error}; the command was terminated", returncode=LOCK_LOST
                    ) from None
                self.stderr.write(f"{error}; the command goes on without it")
        return status


class _Child:
    """The command's process, and the signals on their way to it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._early: list[int] = []
        # In a group of its own it can be ended with all it started; but not on a terminal,
        # which only lets the foreground group read, and which tells Ctrl-C to all of it.
        self._grouped = not sys.stdin.isatty()

    def start(self) -> None:
        self._starting = True
        try:
            self._process = subprocess.Popen(
                self._command, process_group=0 if self._grouped else None
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            raise CommandError(
                f"{self._command[0]}: {error.strerror}",
                returncode=NOT_FOUND if missing else NOT_EXECUTABLE,
            ) from None
        for number in self._early:
            self._send(number)

    def forward(self, number: int, frame: object) -> None:
        if self._process is not None:
            if self._grouped or number not in (signal.SIGINT, signal.SIGQUIT):
                self._send(number)
        elif self._starting:
            # An exception now would leave a process that nobody knows.
            self._early.append(number)
        else:
            raise SystemExit(128 + number)

    def wait(self, seconds: float) -> int | None:
        """Its exit status as a shell gives it, or None if it still runs after `seconds`."""
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
            self.wait(_GONE)

    def _send(self, number: int) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            (os.killpg if self._grouped else os.kill)(self._process.pid, number)
