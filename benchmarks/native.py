"""The C programs of the benchmarks, compiled when they are needed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from redlock_django.testing.processes import ProcessGroup


def compiler() -> str | None:
    """Return the C compiler of this machine, None if there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@contextlib.contextmanager
def serving(source: Path, *arguments: object) -> Iterator[tuple[list[int], int]]:
    """Compile and run a program that prints its ports in one line; yield these and its process."""
    program = compiler()
    if program is None:
        raise RuntimeError(f"{source.name} cannot be compiled: there is no C compiler")
    with ProcessGroup("redlock-benchmark-c-") as processes:
        built = processes.directory / source.stem
        subprocess.run([program, "-O2", "-o", str(built), str(source)], check=True)
        process = processes.spawn(
            [str(built), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        # Both programs end with their standard input.
        with process.stdin, process.stdout:
            yield [int(port) for port in process.stdout.readline().split()], process.pid
