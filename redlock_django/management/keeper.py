"""The keeper: the parent process of a program that must not outlive its lock.

`ChildProcess` runs this file as a script, in an interpreter of its own without Django: one thread,
so that Python code may run between fork and exec. It ends the program if its supervisor, the
process that holds the lock, dies or is stopped. The system kills the program if the keeper dies
(Linux only).

The supervisor writes lines to the descriptor CONTROL:

    until SECONDS   the program must have ended by then, by the clock of `clock`
    signal NUMBER   forward a signal
    end             end the program: SIGTERM, and SIGKILL after the grace

The end of the file means that the supervisor has died. The keeper writes "started PID" or
"failed ERRNO" to the descriptor REPORT, then "overdue" if it ends the program because of the
deadline, and exits with the status of the program as a shell does.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
POLL = 0.02  # seconds between looks at a group whose leader has ended

# The same clock as in redlock_django.wire.clock, which cannot be imported here.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Return the seconds on the clock that deadlines are measured with."""
    return time.clock_gettime(_CLOCK)


class Keeper:
    """Runs one program, and ends it in time.

    With `guarded`, the program ends `grace` seconds before the deadline even if the supervisor says
    nothing, and nothing of its process group survives it. Otherwise the deadline only limits the
    grace after the death of the supervisor. `group` is the process group that the program joins,
    0 for one of its own.
    """

    def __init__(
        self, control: int, report: int, grace: float, *, guarded: bool, group: int
    ) -> None:
        self._control = control
        self._report = report
        self._grace = grace
        self._guarded = guarded
        self._group = group
        self._until = math.inf
        self._kill_at = math.inf
        self._is_ending = False
        self._killed = False
        self._unread = b""
        self._process: subprocess.Popen[bytes]

    def run(self, command: list[str]) -> int:
        """Run the program; return its exit status as a shell does."""
        woken = _wake_at_signals()
        try:
            self._process = subprocess.Popen(
                command, process_group=self._group, preexec_fn=_die_with_parent(os.getpid())
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._write(b"failed %d\n" % (getattr(error, "errno", 0) or errno.EAGAIN))
            return 1
        self._write(b"started %d\n" % self._process.pid)
        while self._process.poll() is None:
            self._wait(woken)
            self._end_in_time()
        if self._is_ending or self._guarded:
            self._end_group()
        status = self._process.returncode
        return 128 - status if status < 0 else status

    def _write(self, line: bytes) -> None:
        """Write a line to the supervisor; without effect if it has just died."""
        with suppress(BrokenPipeError):
            os.write(self._report, line)

    def _wait(self, woken: int) -> None:
        """Wait for a message, the end of the program, or the next moment to do something."""
        if self._is_ending:
            next_moment = math.inf if self._killed else self._kill_at
        else:
            next_moment = self._until - self._grace if self._guarded else math.inf
        left = None if next_moment == math.inf else max(0.0, next_moment - clock())
        watched = [woken] if self._control < 0 else [woken, self._control]
        ready, _, _ = select.select(watched, [], [], left)
        if woken in ready:
            os.read(woken, 4096)
        if self._control in ready:
            self._read()

    def _read(self) -> None:
        data = os.read(self._control, 4096)
        if not data:
            self._control = -1
            self._end(overdue=True)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"until":
                self._until = float(value)
            elif word == b"signal":
                self._send(int(value))
            elif word == b"end":
                self._end()

    def _end_in_time(self) -> None:
        now = clock()
        if self._guarded and now >= self._until - self._grace:
            self._end(overdue=True)
        if self._is_ending and not self._killed and now >= self._kill_at:
            self._killed = True
            self._send(signal.SIGKILL)

    def _end(self, *, overdue: bool = False) -> None:
        """Terminate the program, which is killed after the grace; report if it is overdue."""
        if self._is_ending:
            return
        if overdue and self._control >= 0:
            self._write(b"overdue\n")
        self._is_ending = True
        self._kill_at = clock() + self._grace
        if self._guarded or self._control < 0:
            self._kill_at = min(self._kill_at, self._until)
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # a stopped program cannot end itself

    def _end_group(self) -> None:
        """End what the program has started and left behind, if it had a process group."""
        if not self._is_ending:
            self._end()
        while self._group == 0 and clock() < self._kill_at and self._send(0):
            time.sleep(POLL)
        if self._group == 0:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> bool:
        """Send a signal to the program and its group; return whether any process was there."""
        try:
            if self._group == 0:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                os.kill(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # of a process that runs as another user, and as macOS for zombies
            pass
        return True


def _wake_at_signals() -> int:
    """Keep signals from ending the keeper; return a descriptor that can be read after each signal.

    A handler, not SIG_IGN, which the program would inherit.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (
        signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
    ):  # fmt: skip
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return woken


def _die_with_parent(keeper: int) -> Callable[[], None] | None:
    """Return a function for a new child, which makes the system kill it when the keeper dies.

    Linux keeps this across exec, except for programs that are set-user-ID. Elsewhere there is no
    such call, and the keeper alone watches; so where Python was built without ctypes.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes
    except ImportError:
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != keeper:  # it has died before the call
            os._exit(128 + signal.SIGKILL)

    return ask


def main(arguments: list[str]) -> int:
    """Run a program: CONTROL REPORT GRACE GUARDED GROUP COMMAND…"""
    control, report, grace, guarded, group, *command = arguments
    keeper = Keeper(
        int(control), int(report), float(grace), guarded=guarded == "1", group=int(group)
    )
    return keeper.run(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
