"""Run workloads: one contender after the other, round by round, repeated while others are busy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.harness.environments import Missing, program
from benchmarks.harness.machine import Others
from benchmarks.harness.masters import Masters, client_cpu
from benchmarks.harness.results import Failure, Results, Row
from benchmarks.harness.workers import PATIENCE, Worker, Workers
from benchmarks.harness.workload import WorkerFailed, Workload
from redlock_django.testing.processes import ProcessGroup

WARM_UP = 0.2  # seconds, as in the jobs

QUIET = 0.1
"""The number of processors that other programs may use before a measurement is repeated."""

AGAIN = 2
"""How often the same measurement is repeated at most."""


@dataclass
class Plan:
    """The options of the command line, and the results.

    `repeats` is how many measurements may be repeated because other programs were busy.
    """

    masters: Masters
    results: Results
    processes: ProcessGroup
    rounds: int
    seconds: float
    peers: frozenset[str] | None = None
    settings: Sequence[str] = ()
    repeats: int = 0
    tell: Callable[[str], None] = print
    left_out: dict[str, str] = field(default_factory=dict)
    _others: Others | None = None  # since the measurement under way began

    def __post_init__(self) -> None:
        self._workers = Workers(self.processes)

    # For the `measure` of workloads.

    def measured(
        self, name: str, setting: str, *, n: int = 5, options: Any = None, **job: Any
    ) -> dict[str, Any]:
        """Run a job in a worker; add its connections, and the masters' time for a pair."""
        clients = self.masters.info("clients", "connected_clients")
        with self.worker(name, setting, n=n, **(options or {})) as worker:
            before = self.masters.cpu()
            figures = worker.do(seconds=self.seconds, **job)
            if setting != "stub":
                figures |= self.of_masters(before, figures["pairs"], self.seconds)
            clients = self.masters.info("clients", "connected_clients") - clients
        return {**figures, "connections": clients}

    def of_masters(self, before: float, pairs: int, seconds: float) -> dict[str, float]:
        """Return the masters' processor time for each of the pairs of a job of `seconds`.

        `before` is what they had used when it began.
        """
        if not pairs:
            return {}
        begun = pairs * (1 + WARM_UP / seconds)
        return {"servers_us": (self.masters.cpu() - before) / begun * 1e6}

    @contextlib.contextmanager
    def worker(self, name: str, setting: str, *, n: int = 5, **options: Any) -> Iterator[Worker]:
        """Yield a worker of a contender on the first n masters, which are emptied before."""
        with self.workers(name, setting, 1, n=n, **options) as (worker,):
            yield worker

    @contextlib.contextmanager
    def workers(
        self, name: str, setting: str, count: int, *, n: int = 5, **options: Any
    ) -> Iterator[list[Worker]]:
        """Yield several workers of a contender on the same masters."""
        contender = CONTENDERS[name]
        places = self.masters.places(setting, n)
        self.masters.empty(setting)
        with contextlib.ExitStack() as stack:
            with client_cpu(setting):
                started = (self._workers.started(contender) for _ in range(count))
                workers = [stack.enter_context(one) for one in started]
            for worker in workers:
                worker.ask(home=contender.home, api=contender.api, masters=places, options=options)
            for worker in workers:
                worker.answer(PATIENCE)
            yield workers
            if self._others is not None:
                # Before the workers end: a process that one of them leaves behind is not another's.
                self._others.share()

    # Rounds.

    def run(self, workload: Workload) -> None:
        """Measure all cases of a workload, round by round.

        The contenders of a case run one after the other, and each round begins with another
        contender, so that a ratio within a round compares neighbours.
        """
        for number in range(self.rounds):
            began = time.monotonic()
            for setting in self.in_settings(workload):
                for case, names in workload.cases(setting):
                    able = self.contenders(names)
                    shift = number % len(able) if able else 0
                    for name in (*able[shift:], *able[:shift]):
                        self._try(workload, Row(workload.name, setting, case, name, number, {}))
            took = time.monotonic() - began
            self.tell(f"  {workload.name}: round {number + 1} of {self.rounds}, {took:.0f} s")

    def in_settings(self, workload: Workload) -> Sequence[str]:
        """Return the settings of the command line, else the usual ones of the workload."""
        usual = workload.settings
        if workload.fixed:
            return usual
        asked = [each for each in usual if each in self.settings] or self.settings or usual
        return [each for each in asked if each != "stub" or self.masters.stubbed]

    def contenders(self, names: Sequence[str]) -> list[str]:
        """Return the contenders of `names` that are selected and can run on this machine."""
        return [name for name in names if self._selected(name) and self._able(name)]

    def _selected(self, name: str) -> bool:
        return self.peers is None or name in self.peers or CONTENDERS[name].ours

    def _able(self, name: str) -> bool:
        if name in self.left_out:
            return False
        try:
            program(CONTENDERS[name].environment)
        except Missing as reason:
            self.left_out[name] = str(reason)
            self.tell(f"  {name} is left out: {reason}")
            return False
        return True

    def _try(self, workload: Workload, row: Row) -> None:
        try:
            self._measure(workload, row)
        except Exception as error:  # noqa: BLE001 - the others are measured
            why = str(error)
            if not isinstance(error, WorkerFailed):
                why = f"{type(error).__name__}: {error}"
            place = {"case": row.case, "contender": row.contender}
            if workload.parts:
                place[workload.parts] = ""
            failure = Failure(row.workload, row.setting, **place, round=row.round, why=why)
            self.results.fail(failure)
            self.tell(f"  {self.results.troubles[-1]}")

    def _measure(self, workload: Workload, row: Row) -> None:
        """Add the rows of a measurement, which is repeated while other programs are busy.

        Of several measurements, the one counts that had the most of the machine.
        """
        best: list[Row] = []
        least, parts = float("inf"), workload.parts
        try:
            for left in reversed(range(1 + AGAIN)):
                self._others = others = Others()
                figures = workload.figures(self, row.setting, row.case, row.contender)
                share = others.share()
                rows = []
                for part, own in (figures if parts else {"": figures}).items():
                    changed: dict[str, Any] = {parts: part} if parts else {}
                    rows.append(replace(row, figures={**own, "others": share}, **changed))
                if share < least:
                    best, rows, least = rows, best, share
                for worse in rows:
                    self.results.check(worse)
                if share <= QUIET or not left or not self.repeats:
                    return
                self.repeats -= 1
        finally:
            for one in best:
                self.results.add(one)
