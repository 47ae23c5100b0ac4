"""Where targets are measured: five masters, pinned, far away or neither, and workers on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Place
from benchmarks.jobs.refusals import RESOURCE
from benchmarks.servers import compiler, holding_replies
from benchmarks.servers.stores import Store, redis
from benchmarks.site import section
from benchmarks.targets.results import Results, Row
from benchmarks.worker.process import Worker, WorkerFailed

CPUS = sorted(os.sched_getaffinity(0))
CLIENT_CPU, SERVERS_CPU = CPUS[0], CPUS[-1]
ROUND_TRIP = 0.001
WARM_UP = 0.2  # seconds, as in the jobs


@dataclass
class Lab:
    """The masters and the results of a run.

    The settings of a measurement: "pin" puts the masters on one processor and the client on another
    one, "rtt" delays every reply by 1 ms, "free" leaves it to the kernel.
    """

    store: Store
    far: Place
    seconds: float
    results: Results = field(default_factory=Results)
    round: int = 0

    def turns(self, *names: str) -> list[str]:
        """Return the installed contenders of these; each round begins with another one."""
        able = [name for name in names if CONTENDERS[name].is_installed]
        shift = self.round % len(able)
        return able[shift:] + able[:shift]

    @contextmanager
    def workers(
        self, name: str, count: int = 1, setting: str = "free", **options: Any
    ) -> Iterator[list[Worker]]:
        """Yield workers of a contender on the masters, which are emptied before."""
        self._empty({SERVERS_CPU} if setting == "pin" else {*CPUS})
        place = self.far if setting == "rtt" else self.store.place
        cpus = {CLIENT_CPU} if setting == "pin" else None
        with ExitStack() as stack:
            yield [Worker(name, place, stack, cpus=cpus, options=options) for _ in range(count)]

    @contextmanager
    def trying(self, workload: str, case: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield the figures of a row, which is added; a worker that fails is noted."""
        figures: dict[str, Any] = {}
        try:
            yield figures
        except WorkerFailed as failure:
            self.results.troubles.append(f"{workload}, {case}, {name}: {failure}")
        else:
            self.results.add(Row(workload, case, name, self.round, figures))

    def measure(
        self,
        workload: str,
        case: str,
        name: str,
        job: str,
        *,
        setting: str = "free",
        options: dict[str, Any] | None = None,
        held: int = 0,
        **arguments: Any,
    ) -> None:
        """Add a row: the figures of a job, and the masters' processor time for a pair.

        Another worker holds the lock, or so many permits of it.
        """
        with (
            self.trying(workload, case, name) as figures,
            self.workers(name, 2 if held else 1, setting, **(options or {})) as (worker, *others),
        ):
            for other in others:
                if held == 1:
                    other.do("refusals.hold")
                else:
                    other.do("refusals.hold_permits", names=[RESOURCE], times=held)
            before = self.servers_cpu()
            figures |= worker.do(job, seconds=self.seconds, **arguments)
            begun = figures["pairs"] * (1 + WARM_UP / self.seconds)
            figures["servers_us"] = (self.servers_cpu() - before) / max(begun, 1) * 1e6

    def servers_cpu(self) -> float:
        """Return the seconds of the processor that all masters have used."""
        return sum(map(used, self.store.masters))

    def _empty(self, cpus: set[int]) -> None:
        for master in self.store.masters:
            for thread in Path(f"/proc/{master.process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cpus)
            with master.client() as client:
                client.flushall()


def used(master: Any) -> float:
    """Return the seconds of the processor that a master's main thread has used."""
    with master.client() as client:
        info: Any = client.info("cpu")
    return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])


@contextmanager
def opened(seconds: float) -> Iterator[Lab]:
    """Start the masters, and the proxy if there is a C compiler."""
    with ExitStack() as stack:
        store, far = stack.enter_context(redis(5)), Place()
        if compiler():
            ports = [port for _, port in store.place.masters]
            ports = stack.enter_context(holding_replies(ports, ROUND_TRIP))
            addresses = tuple(("127.0.0.1", port) for port in ports)
            far = Place(section(addresses), addresses)
        yield Lab(store, far, seconds)
