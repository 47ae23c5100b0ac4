"""Start workers and give them jobs, one contender after the other, round by round."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.environments import Missing, program
from benchmarks.floors.tape import record
from benchmarks.forks import ROOT, ForkFailed, Library, Process
from benchmarks.machine import Others
from benchmarks.masters import Masters, client_cpu
from benchmarks.results import Failure, Results, Row
from redlock_django.testing.processes import ProcessGroup

WARM_UP = 0.2  # seconds, as in the jobs

QUIET = 0.1
"""The number of processors that other programs may use before a measurement is repeated."""

AGAIN = 2
"""How often the same measurement is repeated at most."""

PATIENCE = 30.0
"""Seconds beyond the length of a job after which a worker counts as failed."""


class WorkerFailed(Exception):
    """A worker returned an error or did not answer."""


class Worker:
    """A contender in a separate process."""

    def __init__(self, process: Process, name: str, log: Path) -> None:
        self._process, self._name, self._log = process, name, log

    def ask(self, **job: Any) -> None:
        """Send a job without waiting for its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, within: float) -> dict[str, Any]:
        """Return the result of the oldest job; raise WorkerFailed if it is late."""
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], within + PATIENCE)
        line = out.readline() if ready else b""
        if not line:
            self._process.kill()
            last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            word = " / ".join(last) or "no output"
            raise WorkerFailed(f"{self._name} {'ended' if ready else 'never answered'}: {word}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise WorkerFailed(f"{self._name}: {said['error'].strip().splitlines()[-1]}")
        return said

    def do(self, *, seconds: float, **job: Any) -> dict[str, Any]:
        """Run a job of `seconds` and return its result."""
        self.ask(seconds=seconds, **job)
        return self.answer(seconds)


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
    _libraries: dict[str, Library] = field(default_factory=dict)
    _tapes: dict[tuple[str, int], dict[str, list[str]]] = field(default_factory=dict)
    _others: Others | None = None  # since the measurement under way began
    _numbers: Iterator[int] = field(default_factory=count)

    def contenders(self, names: Sequence[str]) -> list[str]:
        """Return the contenders of `names` that are selected and can run on this machine."""
        able = []
        for name in names:
            if name in self.left_out:
                continue
            contender = CONTENDERS[name]
            if self.peers is not None and name not in self.peers and not contender.ours:
                continue
            try:
                program(contender.environment)
            except Missing as reason:
                self.left_out[name] = str(reason)
                self.tell(f"  {name} is left out: {reason}")
                continue
            able.append(name)
        return able

    def in_settings(self, *usual: str) -> Sequence[str]:
        """Return the settings of the command line, else the usual ones of the workload."""
        asked = [each for each in usual if each in self.settings] or self.settings or usual
        return [each for each in asked if each != "stub" or self.masters.stubbed]

    def measured(self, worker: Worker, setting: str, **job: Any) -> dict[str, Any]:
        """Run a job, and add the masters' processor time for each pair."""
        before = self.masters.cpu()
        figures = worker.do(seconds=self.seconds, **job)
        if setting != "stub":
            figures |= self.of_masters(before, figures["pairs"], self.seconds)
        return figures

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
        if contender.taped:
            if (setting, n) not in self._tapes:
                self._tapes[setting, n] = record(places)
            options["tape"] = self._tapes[setting, n]
        with contextlib.ExitStack() as stack:
            with client_cpu(setting):
                workers = [stack.enter_context(self._spawned(name)) for _ in range(count)]
            for worker in workers:
                worker.ask(home=contender.home, api=contender.api, masters=places, options=options)
            for worker in workers:
                worker.answer(PATIENCE)
            yield workers
            if self._others is not None:
                # Before the workers end: a process that one of them leaves behind is not another's.
                self._others.share()

    @contextlib.contextmanager
    def _spawned(self, name: str) -> Iterator[Worker]:
        log = self.processes.directory / f"worker-{next(self._numbers)}.log"
        process = self._process(CONTENDERS[name], log)
        try:
            yield Worker(process, name, log)
        finally:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    with contextlib.suppress(BrokenPipeError):
                        end.close()

    def _process(self, contender: Contender, log: Path) -> Process:
        command = program(contender.environment)
        if contender.environment == "node":
            with log.open("wb") as errors:
                return self.processes.spawn(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
                )
        module = contender.home.partition(":")[0]
        if module not in self._libraries:
            self._libraries[module] = Library(self.processes, command, module)
        try:
            return self._libraries[module].fork(log)
        except ForkFailed as failure:
            del self._libraries[module]
            raise WorkerFailed(f"{contender.name} ended: {failure}") from None

    def interleaved(
        self,
        workload: str,
        groups: Sequence[tuple[str, str, Sequence[str]]],
        measure: Callable[[str, str, str], dict[str, Any]],
        *,
        parts: Literal["case", "contender", ""] = "",
    ) -> None:
        """Measure groups of (setting, case, contenders) round by round.

        The contenders of a group run one after the other, and each round begins with another
        contender, so that a ratio within a round compares neighbours. With `parts`, one
        measurement returns the figures of several cases or contenders, by name.
        """
        for number in range(self.rounds):
            began = time.monotonic()
            for setting, case, names in groups:
                able = self.contenders(names)
                shift = number % len(able) if able else 0
                for name in (*able[shift:], *able[:shift]):
                    row = Row(workload, setting, case, name, number, {})
                    try:
                        self._measure(row, measure, parts)
                    except Exception as error:  # noqa: BLE001 - the others are measured
                        lost: dict[str, Any] = {parts: ""} if parts else {}
                        self._fail(replace(row, **lost), error)
            took = time.monotonic() - began
            self.tell(f"  {workload}: round {number + 1} of {self.rounds}, {took:.0f} s")

    def _measure(
        self,
        row: Row,
        measure: Callable[[str, str, str], dict[str, Any]],
        parts: Literal["case", "contender", ""],
    ) -> None:
        """Add the rows of a measurement, which is repeated while other programs are busy.

        Of several measurements, the one counts that had the most of the machine.
        """
        best: list[Row] = []
        least = float("inf")
        try:
            for left in reversed(range(1 + AGAIN)):
                self._others = others = Others()
                figures = measure(row.setting, row.case, row.contender)
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

    def _fail(self, row: Row, error: Exception) -> None:
        why = str(error) if isinstance(error, WorkerFailed) else f"{type(error).__name__}: {error}"
        place = (row.workload, row.setting, row.case, row.contender, row.round)
        self.results.fail(Failure(*place, why))
        self.tell(f"  {self.results.troubles[-1]}")
