"""The servers of the benchmarks, and a proxy that delays replies as a network would."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from redlock_django.testing.processes import ProcessGroup


def compiler() -> str | None:
    """Return the C compiler of this machine, None if there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@contextlib.contextmanager
def holding_replies(ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    """Compile and start a proxy that delays the replies of masters; yield its ports."""
    source, compile_with = Path(__file__).parent / "hold.c", compiler()
    assert compile_with is not None, "there is no C compiler"
    with ProcessGroup("redlock-benchmark-c-") as processes:
        built = processes.directory / "hold"
        subprocess.run([compile_with, "-O2", "-o", str(built), str(source)], check=True)
        process = processes.spawn(
            [str(built), str(round(seconds * 1e6)), *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:  # it ends with its standard input
            yield [int(port) for port in process.stdout.readline().split()]
