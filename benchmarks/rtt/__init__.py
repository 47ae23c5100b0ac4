"""A proxy that delays every reply, to simulate the round trip of a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.native import compiler, serving

SOURCE = Path(__file__).parent / "hold.c"


@contextlib.contextmanager
def holding_replies(ports: Sequence[int], seconds: float) -> Iterator[tuple[list[int], str]]:
    """Start a proxy for masters on `ports`; yield its ports and its description.

    The proxy is a C program if there is a compiler, else the proxy of the tests, which is written
    in Python and adds the time that Python takes to the delay.
    """
    if compiler() is None:
        with contextlib.ExitStack() as stack:
            yield _in_python(stack, ports, seconds), "a proxy in Python (there is no C compiler)"
        return
    with serving(SOURCE, round(seconds * 1e6), *ports) as (far, _):
        yield far, "a proxy in C"


def _in_python(stack: contextlib.ExitStack, ports: Sequence[int], seconds: float) -> list[int]:
    from tests.wire.proxy import FaultProxy

    proxies = [stack.enter_context(FaultProxy(port)) for port in ports]
    for proxy in proxies:
        proxy.delay_down = seconds
    return [proxy.port for proxy in proxies]
