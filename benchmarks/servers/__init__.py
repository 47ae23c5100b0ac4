"""The C programs of the benchmarks, compiled when they are needed: masters' proxies and stubs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from redlock_django.engine.protocol.commands import script
from redlock_django.testing.processes import ProcessGroup

Ports = tuple[list[int], int]
"""The ports of a program in C, and its process."""


def compiler() -> str | None:
    """Return the C compiler of this machine, None if there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@contextlib.contextmanager
def serving(program: str, *arguments: object) -> Iterator[Ports]:
    """Compile and run a program that prints its ports in one line; yield these and its process."""
    source, compile_with = Path(__file__).parent / f"{program}.c", compiler()
    if compile_with is None:
        raise RuntimeError(f"{source.name} cannot be compiled: there is no C compiler")
    with ProcessGroup("redlock-benchmark-c-") as processes:
        built = processes.directory / program
        subprocess.run([compile_with, "-O2", "-o", str(built), str(source)], check=True)
        process = processes.spawn(
            [str(built), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        # Both programs end with their standard input.
        with process.stdin, process.stdout:
            yield [int(port) for port in process.stdout.readline().split()], process.pid


def granting(masters: int) -> contextlib.AbstractContextManager[Ports]:
    """Start masters that grant at once and cost nothing: what a client can do at best."""
    return serving("grant", script("acquire")[1], masters)


@contextlib.contextmanager
def holding_replies(ports: Sequence[int], seconds: float) -> Iterator[tuple[list[int], str]]:
    """Start a proxy that delays the replies of masters; yield its ports and its description.

    The proxy is a C program if there is a compiler, else the proxy of the tests, which is written
    in Python and adds the time that Python takes to the delay.
    """
    if compiler() is not None:
        with serving("hold", round(seconds * 1e6), *ports) as (far, _):
            yield far, "a proxy in C"
        return
    from tests.wire.proxy import FaultProxy

    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(port)) for port in ports]
        for proxy in proxies:
            proxy.delay_down = seconds
        yield [proxy.port for proxy in proxies], "a proxy in Python (there is no C compiler)"
