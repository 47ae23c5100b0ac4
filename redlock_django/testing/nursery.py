"""Child processes and a directory that never outlive this process, not even after kill -9.

The usual means on Linux, PR_SET_PDEATHSIG, fires when the *thread* that forked ends, needs code
between fork and exec, and removes no files. Here a watchdog (three words of shell) waits on a pipe
that only this process holds: when a line or the end of the pipe arrives, it removes the directory
and kills its process group, which every child joined. Leaving normally goes the same way.
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
    from types import TracebackType
    from typing import Any, Self

# SIGKILL reaches stopped children too. A group of its own keeps a Ctrl-C in the terminal from
# ending the children before the parent has had its say. The signals are ignored because the kernel
# sends SIGHUP to a group that lost its parent while one of its members is stopped.
_WATCHDOG = 'trap "" HUP INT TERM; read -r _; rm -rf -- "$1"; kill -9 0'


class Nursery:
    """A temporary directory (`directory`) and processes, all gone when the block is left.

    Use as a context manager. A process that ends in any other way, kill -9 included, is followed
    by its children within milliseconds. A forked copy of this object closes nothing.
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
        """Start a process that cannot outlive us.

        `options` go to `subprocess.Popen`; without them the process has no input and its output
        is dropped. Raises what `Popen` raises.
        """
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.DEVNULL)
        child = subprocess.Popen(argv, process_group=self._watchdog.pid, **options)
        self._children = [known for known in self._children if known.poll() is None]
        self._children.append(child)
        return child

    def close(self) -> None:
        """Kill the children, paused ones too, and remove the directory; harmless when repeated."""
        # A fork of ours runs the same `finally` and atexit: it must leave its parent's children be.
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        atexit.unregister(self.close)
        stdin = self._watchdog.stdin
        assert stdin is not None
        # A line, not only the end of the pipe: a fork of ours may still hold the other copy. From
        # here on the watchdog does it all, even if a second Ctrl-C lands in the waits below.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(b"\n")
            stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._watchdog.wait()
        for child in self._children:
            child.kill()  # only matters if somebody killed the watchdog first
            child.wait()
        # A child may have written a file while the watchdog was removing the directory.
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
