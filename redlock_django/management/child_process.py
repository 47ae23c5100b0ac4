"""`ChildProcess`: the program that `with_lock` and `lead` run, and that does not outlive them."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.core.management import get_commands
from django.core.management.base import CommandError

from redlock_django.exceptions import LockLost, StoreUnavailable
from redlock_django.locking.lock import Lock
from redlock_django.wire.clock import clock

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in shells
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FENCE = "REDLOCK_FENCE"
"""The environment variable that has the fencing token of its lock for a program."""
GRACE = 1 / 4
"""The part of the TTL that a program has between SIGTERM and SIGKILL."""
MARGIN = 1 / 10
"""The part of the TTL between SIGKILL and the end of the lock."""

_LAUNCHER = Path(__file__).with_name("launcher.py")
_KILL_TIMEOUT = 10.0  # seconds that a killed process may take to end, in a system call for example
_POLL = 0.1  # seconds between two looks at the lock of a program
_LOOK = 0.02  # seconds between two looks at a process group whose leader has ended
_VERIFY_EVERY = 1.0  # seconds between questions to the masters, which notice a forced release
_RENEWED = 1 / 2
"""The part of the TTL that is left at least if renewals succeed. With less, renewals ask the
masters, and a question that takes long must not delay the end of the program."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class ChildProcess:
    """A program, the signals to forward to it, and the moment by which it must have ended.

    It is ended by SIGTERM, and by SIGKILL after the grace or at that moment. If this process
    dies, Linux kills the program: more exactly, when the thread ends that started it, which must
    therefore wait for it. With `guarded`, what the program leaves in its process group ends too.
    """

    asked_to_end = False
    """True once this process has received a signal that means that it is to end."""
    _process: subprocess.Popen[bytes] | None = None
    _grace = 0.0
    _until = math.inf
    _ended = False

    def __init__(self, command: list[str], *, guarded: bool = False) -> None:
        self._command = command
        self._guarded = guarded
        self._starting = False
        self._exiting = False
        self._early: list[int] = []
        # In a separate process group the program can be ended with all its children. On a terminal
        # that is not possible: only the foreground group may read from it and receives Ctrl-C.
        self._grouped = guarded or not sys.stdin.isatty()

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Forward signals to the program. Before it is started, they end this process instead."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                    before[number] = signal.signal(number, self._forward)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: object) -> None:
        self.asked_to_end = self.asked_to_end or number in _ENDING
        if self._process is not None:
            if self._grouped or number not in (signal.SIGINT, signal.SIGQUIT):
                self._send(number)
        elif self._starting:
            # An exception at this point would leave a process that nothing ends.
            self._early.append(number)
        elif not self._exiting:
            # Once: another signal, as supervisors send it, must not interrupt the clean-up.
            self._exiting = True
            raise SystemExit(128 + number)

    def run_under(
        self, held: Lock, goes_on: Callable[[str], object] | None = None
    ) -> tuple[int | None, str]:
        """Run the program until it ends, or until its lock is lost or not renewed in time.

        Return its exit status as a shell does, and how the lock was lost, "" if it was not.
        `goes_on` is called with that if the program is to go on without its lock. Raises
        CommandError if the program cannot be run.
        """
        watch = _Watch(held)
        self._grace, self._until = watch.ttl * GRACE, math.inf if goes_on else watch.until
        with self._running(None if held._unlocked else held.fence):
            while (status := self.wait()) is None:
                lost = watch.look()
                if goes_on:
                    if lost:
                        goes_on(lost)
                    continue
                self._until = watch.until
                if self._left() <= 0:
                    lost = lost or f"{held.resources[0]}: the lock was not renewed in time"
                if lost:
                    return self.end(), lost
        return status, ""

    @contextmanager
    def _running(self, fence: int | None) -> Iterator[None]:
        """Run the program during the block; raise CommandError if it cannot be run.

        `fence` is the fencing token of its lock, None without a lock (ON_UNAVAILABLE).
        """
        self._starting = True
        environment = {name: value for name, value in os.environ.items() if name != FENCE}
        process = self._start(environment if fence is None else {**environment, FENCE: str(fence)})
        try:
            self._process = process
            for early in self._early:
                self._send(early)
            yield
        finally:
            if not self._ended and (process.returncode is None or self._guarded):
                self.end()

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the program, and return when it has taken the place of the launcher."""
        read, report = os.pipe()
        with open(read, "rb") as answer:
            try:
                process = subprocess.Popen(
                    [
                        *(sys.executable or "python3", "-I", "-S", str(_LAUNCHER)),
                        *(str(os.getpid()), str(report), *self._command),
                    ],
                    env=environment,
                    pass_fds=(report,),
                    process_group=0 if self._grouped else None,
                )
            except OSError as error:
                problem = f"{self._command[0]}: cannot start a process for it: {error.strerror}"
                raise CommandError(problem, returncode=NOT_EXECUTABLE) from None
            finally:
                os.close(report)
            failure = answer.read()
        if failure:
            process.wait()
            raise self._refusal(int(failure))
        return process

    def _refusal(self, number: int) -> CommandError:
        missing = number == errno.ENOENT
        hint = ""
        if missing and self._command[0] in get_commands():
            hint = f". For the management command, write: python manage.py {self._command[0]}"
        return CommandError(
            f"{self._command[0]}: {os.strerror(number)}{hint}",
            returncode=NOT_FOUND if missing else NOT_EXECUTABLE,
        )

    def _left(self) -> float:
        """Return the seconds until the program must get SIGTERM to have its grace."""
        return self._until - self._grace - clock()

    def wait(self) -> int | None:
        """Return the exit status as a shell does, or None when the lock is to be looked at."""
        return self._wait(min(_POLL, self._left()))

    def _wait(self, seconds: float) -> int | None:
        assert self._process is not None
        try:
            status = self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None
        return 128 - status if status < 0 else status

    def end(self) -> int | None:
        """End the program, by SIGTERM and after the grace by SIGKILL; return its exit status."""
        self._ended = True
        kill_at = min(clock() + self._grace, self._until)
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a stopped program cannot end itself
        status = self._wait(kill_at - clock())
        while status is not None and self._grouped and clock() < kill_at and self._send(0):
            time.sleep(_LOOK)  # what it has started may still end by itself
        self._send(signal.SIGKILL)
        return self._wait(_KILL_TIMEOUT) if status is None else status

    def _send(self, number: int) -> bool:
        """Send a signal to the program and its group; return whether any process was there."""
        assert self._process is not None
        try:
            if self._grouped:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                os.kill(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # of a process that runs as another user, and as macOS for zombies
            pass
        return True


class _Watch:
    """Looks at a lock: whether it is lost, and until when a program may run under it.

    `until` is by `redlock_django.wire.clock`; it stays where it was when the lock is lost.
    """

    until = math.inf

    def __init__(self, held: Lock) -> None:
        self._held = held
        _, self.ttl, _ = held._arguments.resolve()
        self._verify_at = time.monotonic() + _VERIFY_EVERY
        self._is_lost = False
        self.look()

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
