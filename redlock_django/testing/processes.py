"""Child processes and a directory that never outlive this process, not even after kill -9.

The usual solution on Linux, PR_SET_PDEATHSIG, fires when the *thread* that forked ends, needs code
between fork and exec, and removes no files. Instead, a watchdog (a short shell script) reads from
a pipe whose other end only this process has. When a line or the end of the file arrives, it
removes the directory and kills its process group, which every child has joined. `close` uses the
same path.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

# SIGKILL also kills stopped children. Ctrl-C in the terminal does not reach a separate process
# group, so the parent decides when the children end. The signals are ignored because the kernel
# sends SIGHUP to a group that lost its parent while one of its members is stopped.
_WATCHDOG = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$1"; kill -9 0'


class ProcessGroup:
    """A temporary directory (`directory`) and child processes, all removed at the end of the block.

    Use it as a context manager. If this process ends in any other way, kill -9 included, its
    children are killed within milliseconds. A forked copy of this object closes nothing.
    """

    directory: Path

    def __init__(self, prefix: str) -> None:
        self._owner = os.getpid()
        self._closed = False
        self._children: list[subprocess.Popen[bytes]] = []
        self.directory = Path(tempfile.mkdtemp(prefix=prefix))
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        atexit.register(self.close)

    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that cannot outlive this one.

        `options` are passed to `subprocess.Popen`. By default the process has no input and its
        output is discarded. Raises the errors of `Popen`.
        """
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.DEVNULL)
        child = subprocess.Popen(argv, process_group=self._watchdog.pid, **options)
        self._children = [known for known in self._children if known.poll() is None]
        self._children.append(child)
        return child

    def close(self) -> None:
        """Kill all children, including paused ones, and remove the directory. May be repeated."""
        # A fork of this process runs the same `finally` and atexit code, and must not kill the
        # children of its parent.
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        atexit.unregister(self.close)
        stdin = self._watchdog.stdin
        assert stdin is not None
        # A line is written because closing the pipe is not enough: a fork may still have a copy of
        # this end. From here on the watchdog does all the work, even if a second Ctrl-C interrupts
        # the waits below.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(b"\n")
            stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._watchdog.wait()
        for child in self._children:
            child.kill()  # Needed only if the watchdog was killed first.
            child.wait()
        # A child may have written a file while the watchdog was removing the directory.
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
