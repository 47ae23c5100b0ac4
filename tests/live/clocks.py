"""Processes whose clocks a test sets, through a preloaded library that shifts them."""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from redlock_django.testing.masters import LocalMaster, find_server, local_masters
from tests.waiting import until

# The clock from which this process proposes fences.
WALL = "redlock_django.backends.redis.backend.wall_ns"
SOURCE = Path(__file__).with_name("clock_shim.c")
_WRAPPER = """#!/bin/sh
for word; do
  [ "$before" = --dir ] && export CLOCK_SHIFT="$word/clock"
  before=$word
done
LD_PRELOAD={shim} exec {server} "$@"
"""


class NoShim(Exception):
    """Clocks cannot be set on this machine; the message says why."""


class Clock:
    """The clocks of the processes that read the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wall = 0.0  # seconds by which their wall clocks are shifted now

    def set(self, *, wall: float = 0.0, boot: float = 0.0, rate: float = 1.0) -> None:
        """Shift the clocks by `wall` and `boot` seconds, and run the wall clock at `rate`."""
        self.wall = wall
        since = time.time_ns() // 1000
        shift = struct.pack("=qqqq", *(round(n * 1e6) for n in (wall, boot, rate - 1)), since)
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.write(shift)


def build(directory: Path) -> Path:
    """Compile the library in this directory and return its path; raise NoShim if that fails."""
    if shutil.which("gcc") is None:
        raise NoShim(
            "gcc is needed to compile the library that shifts clocks (apt-get install gcc)"
        )
    shim = directory / "clock_shim.so"
    made = subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", shim, SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NoShim(f"gcc cannot compile the library that shifts clocks: {made.stderr[-200:]}")
    return shim


class ClockedMaster:
    """A master with a clock of its own."""

    def __init__(self, master: LocalMaster) -> None:
        self.master = master
        self.clock = Clock(master.directory / "clock")

    def set(self, wall: float) -> None:
        """Shift the master's clock by `wall` seconds, and wait until scripts see the new time.

        Valkey reads the clock only about ten times a second, and extrapolates in between.
        """
        self.clock.set(wall=wall)
        with self.master.client() as client:
            until(lambda: self._is_off(client, wall), f"a clock that is {wall:+g} s off")

    @staticmethod
    def _is_off(client: Redis, wall: float) -> bool:
        before = time.time()
        seconds, micros = client.eval("return redis.call('TIME')", 0)
        off = int(seconds) + int(micros) / 1e6 - wall
        return before - 0.1 < off < time.time() + 0.1

    def has(self, resource: str) -> bool:
        """Return whether this master has the lock."""
        with self.master.client() as client:
            return bool(client.exists(f"redlock:lock:{resource}"))


@contextmanager
def clocked_masters(shim: Path, n: int) -> Iterator[list[ClockedMaster]]:
    """Start n masters with a clock each; raise NoShim if the server does not follow its clock."""
    wrapper = shim.with_name("server")
    wrapper.write_text(_WRAPPER.format(shim=shlex.quote(str(shim)), server=find_server()))
    wrapper.chmod(0o755)
    with local_masters(n, binary=wrapper) as masters:
        clocked = [ClockedMaster(master) for master in masters]
        for each in clocked:
            try:
                each.set(1000.0)
            except AssertionError:
                raise NoShim(f"{find_server()} does not read the time from the C library") from None
        yield clocked
