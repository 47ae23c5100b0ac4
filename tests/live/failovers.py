"""`python -m tests.live.failovers`: processes that lock while a Sentinel promotes servers in turn.

In turn the primary is killed, and a failover is asked for while the primary goes on: then two
servers grant locks for some 10 s. Workers connect again from time to time, so that some of them use
the former primary and some the new one. No two may hold the lock at the same time, as the clock of
this machine shows, and fences must grow. The exit status is 1 otherwise. It must be 1 with
`--trusting`: a promoted replica grants locks at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import django
from django.conf import settings

from redlock_django.backends.redlock import settings as redlock_settings
from tests.live.sentinels import Service, client, configure, watched

WAIT = 22.0
"""Seconds until a promoted replica is trusted, and some more, with MAX_TTL = 2."""


@dataclass(frozen=True)
class Held:
    """A lock as its holder knew it: from when, until when at least, and its fence."""

    began: float
    until: float
    fence: int


@dataclass(frozen=True)
class Report:
    """The outcome of a run: how many failovers there were, and what was held, in order."""

    failovers: int
    held: list[Held]

    @property
    def overlaps(self) -> int:
        """How often a lock was acquired while another process held it."""
        return sum(after.began < before.until for before, after in pairwise(self.held))

    @property
    def falls(self) -> int:
        """How often a fence was not above the last one."""
        return sum(after.fence <= before.fence for before, after in pairwise(self.held))


def work(section: dict[str, Any], number: int, trusting: bool, stop: Any, path: str) -> None:
    """Acquire, hold and release the lock, until `stop` is set; write each time that it was held."""
    settings.configure(INSTALLED_APPS=["redlock_django"], REDLOCK={"default": section})
    django.setup()
    logging.disable(logging.CRITICAL)
    if trusting:
        redlock_settings._restart_delay = lambda *_: 0.001
    from redlock_django import lock
    from redlock_django.exceptions import RedlockError
    from redlock_django.locking.services import locks

    rng = random.Random(number)
    with Path(path).open("w") as written:
        while not stop.is_set():
            if rng.random() < 0.02:
                locks.close()
            held = lock("order:1", ttl=2, wait=0.2, renew=rng.random() < 0.5)
            try:
                held.acquire()
            except RedlockError:
                continue
            began = until = time.monotonic()
            ends, fence = began + rng.choice((0.02, 0.1, 1.0)), held.fence
            with suppress(RedlockError):
                while (now := time.monotonic()) < ends and held.remaining() > 0:
                    until = now
                    time.sleep(0.01)
                held.release()
            written.write(f"{json.dumps([began, until, fence])}\n")
            time.sleep(rng.uniform(0, 0.02))


def fail_over(service: Service, *, kills: bool) -> None:
    """Make the replica the primary, and wait until the former primary is its replica."""
    former = service.primary
    [server] = [one for one in service.servers if one.port == former]
    if kills:
        server.kill()
    else:
        with service.sentinel as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", "Locks")
    while service.primary == former:
        time.sleep(0.1)
    if kills:
        server.start()
        configure(server)
    while True:
        with suppress(OSError), client(server) as admin:
            state: Any = admin.info("replication")
            if state["role"] == "slave" and state["master_link_status"] == "up":
                return
        time.sleep(0.1)


def run(seconds: float, workers: int = 4, *, trusting: bool = False) -> Report:
    """Run workers for so long, under failovers, and return what they held, in order."""
    context = multiprocessing.get_context("spawn")
    stop, failovers = context.Event(), 0
    with watched() as service, TemporaryDirectory() as folder:
        section = service.settings(
            TTL=2, MAX_TTL=2, MAX_CLOCK_SKEW=0.2, MASTER_TIMEOUT=0.9, CONNECT_TIMEOUT=2
        )
        paths = [f"{folder}/{number}" for number in range(workers)]
        processes = [
            context.Process(target=work, args=(section, number, trusting, stop, path), daemon=True)
            for number, path in enumerate(paths)
        ]
        for process in processes:
            process.start()
        ends = time.monotonic() + seconds
        time.sleep(WAIT)
        while time.monotonic() < ends:
            fail_over(service, kills=failovers % 2 == 1)
            failovers += 1
            time.sleep(WAIT)
        stop.set()
        for process in processes:
            process.join(60)
        held = sorted(_read(paths), key=lambda one: one.began)
    return Report(failovers, held)


def _read(paths: list[str]) -> Iterator[Held]:
    for path in paths:
        for line in Path(path).read_text().splitlines():
            yield Held(*json.loads(line))


def main() -> int:
    """Read the command line, run, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.failovers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--trusting", action="store_true", help="must break the lock")
    options = parser.parse_args()
    report = run(options.seconds, trusting=options.trusting)
    sys.stdout.write(
        f"{report.failovers} failovers, {len(report.held)} grants, {report.overlaps} overlaps, "
        f"{report.falls} fences that did not grow\n"
    )
    return int(bool(report.overlaps or report.falls or not report.held))


if __name__ == "__main__":
    sys.exit(main())
