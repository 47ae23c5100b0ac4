"""The masters of a benchmark: real servers, pinned or not, with or without a round trip."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.servers import compiler, granting, holding_replies
from redlock_django.testing import LocalMaster, local_masters

CPUS = sorted(os.sched_getaffinity(0))
CLIENT_CPU, SERVERS_CPU = CPUS[0], CPUS[-1]
"""The processors of clients and masters when pinned."""

PINNED = ("pin", "stub")
"""The settings in which clients and masters are pinned."""


class Masters:
    """N servers with their addresses in each setting; created by `started`."""

    def __init__(
        self, masters: list[LocalMaster], far: list[int], proxy: str, stubs: list[int], stub: int
    ) -> None:
        self.every = masters
        self.proxy = proxy
        self._far = far
        self._stubs = stubs
        self._stub = stub  # their process

    def places(self, setting: str, n: int) -> list[tuple[str, int]]:
        """Return the addresses of the first n masters in a setting (free, pin, rtt or stub)."""
        real = [master.port for master in self.every]
        ports = {"rtt": self._far, "stub": self._stubs}.get(setting, real)
        return [("127.0.0.1", port) for port in ports[:n]]

    def empty(self, setting: str) -> None:
        """Empty all masters and pin them as the setting requires."""
        cpus = {SERVERS_CPU} if setting in PINNED else set(CPUS)
        stub = (self._stub,) if self._stub else ()
        for pid in (*stub, *(master.process.pid for master in self.every)):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cpus)
        for master in self.every:
            with master.client() as client:
                client.flushall()

    @property
    def stubbed(self) -> bool:
        """True if there are stub masters: these need a C compiler."""
        return bool(self._stubs)

    def cpu(self) -> float:
        """Return the seconds of the processor that all masters have used."""
        return sum(self.info("cpu", f"used_cpu_{kind}") for kind in ("user", "sys"))

    def info(self, section: str, word: str) -> float:
        """Return the sum of a number in INFO over all masters."""
        total = 0.0
        for master in self.every:
            with master.client() as client:
                said: Any = client.info(section)
                total += float(said[word])
        return total

    @property
    def version(self) -> str:
        """The name and version of the servers."""
        with self.every[0].client() as client:
            said: Any = client.info("server")
        name = "Valkey" if "valkey_version" in said else "Redis"
        return f"{name} {said.get('valkey_version') or said['redis_version']}"


@contextlib.contextmanager
def started(n: int, rtt: float) -> Iterator[Masters]:
    """Start n masters, and a proxy that delays replies by `rtt` seconds (0: no proxy)."""
    with local_masters(n) as masters, contextlib.ExitStack() as stack:
        far: list[int] = []
        proxy = ""
        stubs, stub = stack.enter_context(granting(n)) if compiler() else ([], 0)
        if rtt:
            ports = [master.port for master in masters]
            far, proxy = stack.enter_context(holding_replies(ports, rtt))
        yield Masters(masters, far, proxy, stubs, stub)


@contextlib.contextmanager
def client_cpu(setting: str) -> Iterator[None]:
    """Pin processes that are started in this block as the setting requires for clients."""
    if setting in PINNED:
        os.sched_setaffinity(0, {CLIENT_CPU})
    try:
        yield
    finally:
        os.sched_setaffinity(0, CPUS)
