"""`ChildProcess`: the program that `with_lock` and `lead` run, and that does not outlive them.

A keeper (`management.keeper`) is between the supervisor, which is this process, and the program.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from django.core.management import get_commands
from django.core.management.base import CommandError

from redlock_django.management import keeper

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in shells
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

_KILL_TIMEOUT = 10.0  # seconds that a killed process may take to end, in a system call for example
_SAME = 0.001  # seconds by which two readings of one deadline may differ: it moves at a renewal
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class ChildProcess:
    """A program, the signals to forward to it, and the moment by which it must have ended.

    It ends if this process dies: it gets SIGTERM, and SIGKILL after `grace` seconds or at the
    deadline. With `guarded`, it also ends `grace` seconds before the deadline if this process is
    stopped, and all that it has started ends with it.
    """

    asked_to_end = False
    """True once this process has received a signal that means that it is to end."""
    was_overdue = False
    """True if the program was ended because its deadline was near, and not by this process."""
    _report: BinaryIO

    def __init__(self, command: list[str], *, grace: float, guarded: bool = False) -> None:
        self._command = command
        self._grace = grace
        self._guarded = guarded
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._control = -1
        self._starting = False
        self._exiting = False
        self._early: list[int] = []
        self._until = math.inf
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

    def start(self, *, until: float = math.inf) -> None:
        """Start the program, which must have ended at `until`; CommandError if it cannot run."""
        self._starting = True
        control, self._control = os.pipe()
        os.set_blocking(self._control, False)  # a keeper that is stopped reads nothing
        read, reporting = os.pipe()
        self._report = open(read, "rb")  # noqa: SIM115 - closed when the keeper has ended
        self.must_end_by(until)
        descriptors = [str(control), str(reporting)]
        guarded, group = str(int(self._guarded)), str(0 if self._grouped else os.getpgrp())
        try:
            self._keeper = subprocess.Popen(
                [
                    *(sys.executable or "python3", "-I", "-S", keeper.__file__),
                    *(*descriptors, str(self._grace), guarded, group, *self._command),
                ],
                pass_fds=(control, reporting),
                process_group=0,  # Ctrl-C does not reach it
            )
        except OSError as error:
            problem = f"{self._command[0]}: cannot start a process for it: {error.strerror}"
            raise CommandError(problem, returncode=NOT_EXECUTABLE) from None
        finally:
            os.close(control)
            os.close(reporting)
        word, _, number = self._report.readline().partition(b" ")
        if word != b"started":
            self._refuse(int(number or errno.EAGAIN))
        self._pid = int(number)
        for early in self._early:
            self._write(f"signal {early}")

    def _refuse(self, number: int) -> None:
        self._wait_for_keeper(_KILL_TIMEOUT)
        missing = number == errno.ENOENT
        hint = ""
        if missing and self._command[0] in get_commands():
            hint = f". For the management command, write: python manage.py {self._command[0]}"
        raise CommandError(
            f"{self._command[0]}: {os.strerror(number)}{hint}",
            returncode=NOT_FOUND if missing else NOT_EXECUTABLE,
        )

    def must_end_by(self, until: float) -> None:
        """Set the deadline, by `keeper.clock`; math.inf for none."""
        is_same = until == self._until or abs(until - self._until) < _SAME
        if not is_same:
            self._until = until
            self._write(f"until {until}")

    def wait(self, seconds: float) -> int | None:
        """Return the exit status as a shell does, or None if it still runs after `seconds`."""
        status = self._wait_for_keeper(seconds)
        if status is not None and status < 0:  # a keeper that was killed
            self._kill_group()
            return 128 - status
        return status

    def end(self) -> int | None:
        """End the program, by SIGTERM and after the grace by SIGKILL; return its exit status."""
        self._write("end")
        status = self.wait(self._grace + 1.0)
        if status is None and self._keeper is not None:
            # The keeper is stopped. The system kills the program with it, where it can.
            self._kill_group()
            self._keeper.kill()
            status = self.wait(_KILL_TIMEOUT)
        return status

    def _forward(self, number: int, frame: object) -> None:
        self.asked_to_end = self.asked_to_end or number in _ENDING
        if self._pid is not None:
            if self._grouped or number not in (signal.SIGINT, signal.SIGQUIT):
                self._write(f"signal {number}")
        elif self._starting:
            # An exception at this point would leave a process that nothing ends.
            self._early.append(number)
        elif not self._exiting:
            # Once: another signal, as supervisors send it, must not interrupt the clean-up.
            self._exiting = True
            raise SystemExit(128 + number)

    def _write(self, line: str) -> None:
        """Write a line to the keeper, in one piece; without effect if it has ended or hangs."""
        with suppress(BrokenPipeError, BlockingIOError):
            if self._control >= 0:
                os.write(self._control, f"{line}\n".encode())

    def _wait_for_keeper(self, seconds: float) -> int | None:
        assert self._keeper is not None
        try:
            status = self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._control >= 0:
            control, self._control = self._control, -1
            os.close(control)
            with self._report:
                self.was_overdue = b"overdue" in self._report.read()
        return status

    def _kill_group(self) -> None:
        if self._pid is not None and self._grouped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
