"""The benchmarks run, and notice a lock that does not exclude."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as run
from benchmarks import machine
from benchmarks.contenders import Contender, Place
from benchmarks.jobs.pairs import pairs
from benchmarks.jobs.refusals import refusals
from benchmarks.machine import _used_by_others
from benchmarks.servers import stores
from benchmarks.site import section
from benchmarks.table import Figures, cell, table
from benchmarks.targets import every, lab, views
from benchmarks.targets import pairs as of_pairs
from benchmarks.targets.handoff import together
from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Results, Row, Target
from benchmarks.worker.bench import Threads, complete
from benchmarks.worker.process import Worker, WorkerFailed
from benchmarks.worker.witness import Intruder, Turnstile
from redlock_django.testing import LocalMaster


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow masters to answer late, so that no lock fails because the machine is busy."""

    def more(masters: Any, **own: Any) -> dict[str, Any]:
        return section(masters, **{"MASTER_TIMEOUT": 1.0, "CONNECT_TIMEOUT": 30.0, **own})

    monkeypatch.setattr(stores, "section", more)
    monkeypatch.setattr("benchmarks.targets.lab.section", more)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_the_command_of_users_prints_a_table_of_stores_and_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--stores", "redis5,redis1,sqlite", "--rounds", "1", "--seconds", "0.05"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
    assert run.main() == 0
    lines = capsys.readouterr().out.strip().splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines[2:-2]}
    assert list(rows) == [
        "**five Redis masters**",
        "the same, two of them hung",
        "**one Redis**",
        "one Redis: redis-py's Lock",
        "**SQLite**",
    ]
    for row, cells in rows.items():
        assert bool(cells[0].strip()), row
    assert all(each.strip() for each in rows["**five Redis masters**"])
    assert lines[-1].startswith("Measured on ")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_targets_are_measured_beside_the_floor_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "compiler", lambda: None)  # no network of 1 ms
    monkeypatch.setattr(of_pairs, "PEERS", ("ours", "floor", "floor SET", "ours async"))
    monkeypatch.setattr(of_pairs, "REFUSING", ("ours", "redis-py's Lock"))
    monkeypatch.setattr(of_pairs, "OURS", ("ours",))
    results = every.measure(["pairs", "scripts"], 1, 0.05, lambda line: None)
    assert results.troubles == []
    measured = [row for row in results.rows if row.workload != "scripts"]
    assert {row.contender for row in measured} >= {"ours", "ours async", "floor", "floor SET"}
    for row in measured:
        assert row.figures["pairs"] > 0, row
        assert row.figures["looks"] > 0 or row.case in ("resume", "acquire and release"), row
    page = every.page(results)
    assert "| acquire + release | client CPU by floor | ≤ 1.8× |" in page
    assert "| the scripts of a pair, on one master | processor time | ≤ 18 µs |" in page
    assert "| pin | redis-py's Lock |" in every.figures(results)


@pytest.mark.parametrize(
    ("options", "unknown", "known"),
    [
        (["--stores", "redis5,oracle"], "oracle", "redis5, redis1, postgresql"),
        (["--all", "--only", "pears"], "pears", "pairs, scripts"),
        (["pair_party"], "pair_party", "pair_parts"),
    ],
)
def test_unknown_arguments_are_reported_before_any_measurement(
    options: list[str],
    unknown: str,
    known: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
    with pytest.raises(SystemExit) as ended:
        run.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert unknown in said
    assert known in said


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return a stack that is closed after the test."""
    with ExitStack() as stack:
        yield stack


class NoLock(Contender):
    """A lock that is always granted, without a command to any master."""

    def acquire(self, resource: str) -> Any:
        return resource

    wait = acquire

    def release(self, held: Any) -> None:
        pass


@pytest.mark.parametrize("job", [pairs, refusals])
def test_a_lock_that_does_not_exclude_is_found_out(masters: list[LocalMaster], job: Any) -> None:
    places = [("127.0.0.1", master.port) for master in masters]
    with Intruder(places, NoLock(Place())) as intruder:
        figures = complete(job(Threads(NoLock(Place()), intruder), seconds=0.1, warm_up=0.0))
    assert figures["overlaps"] > 0

    results = Results()
    results.add(Row("pairs", "one", "no lock", 0, figures))
    assert "did NOT exclude" in results.troubles[0]


def test_a_measurement_that_fails_is_reported_and_the_others_are_kept() -> None:
    unused: Any = None
    made = Lab(unused, unused, 0.1)

    def fail() -> None:
        raise WorkerFailed("ours never answered")

    with made.trying("refusals", "pin", "ours"):
        fail()
    with made.trying("refusals", "pin", "floor") as figures:
        figures["p50_us"] = 100.0
    assert made.results.troubles == ["refusals, pin, ours: ours never answered"]
    page = every.page(made.results)
    assert "- **trouble**: refusals, pin, ours: ours never answered" in page
    assert "| pin | floor | 100 |" in every.figures(made.results)
    assert "acquire + release" not in page  # was not measured


def test_a_worker_that_ended_is_reported(stack: ExitStack) -> None:
    worker = Worker("floor", Place(masters=(("127.0.0.1", 1),)), stack)
    with pytest.raises(WorkerFailed, match="floor ended"):
        worker.do("pairs.pairs", seconds=0.1)


def test_a_job_that_fails_is_reported_with_its_error(stack: ExitStack) -> None:
    worker = Worker("pg_advisory_lock", Place(), stack)
    with pytest.raises(WorkerFailed, match=r"refusals.wait: .*ImproperlyConfigured"):
        worker.do("refusals.wait")


def test_an_interrupted_run_keeps_its_results(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(lab: Lab) -> None:
        lab.results.add(Row("views", "gunicorn", "ours", lab.round, {"per_s": 40.0}))
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "measure", measure)
    results = every.measure(["views"], 2, 0.1, lambda line: None)
    assert results.troubles == ["interrupted: what comes later was not measured"]
    assert "| gunicorn | ours | 40 |" in every.figures(results)


def test_a_target_that_is_missed_is_bold_and_has_its_reason() -> None:
    results = Results()
    for name, rate in {"ours": 500.0, "redis-py": 1000.0}.items():
        results.add(Row("views", "gunicorn", name, 0, {"per_s": rate}))
    page = every.page(results)
    assert (
        "| a locked view, gunicorn | requests/s by redis-py's Lock | ≥ 0.97× | **0.5×** |" in page
    )
    assert "- a locked view, gunicorn (requests/s by redis-py's Lock): The server" in page
    assert "0 of 1 met" in page


def test_programs_of_this_run_are_not_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        others = {pid for pid, _ in _used_by_others()}
        assert 1 in others
        assert {os.getpid(), child.pid}.isdisjoint(others)


def test_the_figures_end_with_the_date_the_machine_and_other_programs() -> None:
    said = machine.sentence(0.42, 61.0)
    assert said.startswith("Measured on ")
    assert " in 61 s: " in said
    assert "; other programs used 0.4 processors, load " in said


def test_a_cell_is_the_median_of_its_rounds() -> None:
    assert [cell(each) for each in ([], [0.5, 9.0, 0.7], [12.34], [4567.8])] == [
        "", "0.70", "12.3", "4,568",
    ]  # fmt: skip
    figures: Figures = defaultdict(lambda: defaultdict(list))
    figures["**SQLite**"]["adds to a request, ms"].append(0.5)
    heads, rule, row = table(figures).splitlines()
    assert len(heads) == len(rule) == len(row)


def test_two_inside_at_once_are_counted(tmp_path: Path) -> None:
    here, there = Turnstile(str(tmp_path / "turn")), Turnstile(str(tmp_path / "turn"))
    with here, there:
        pass
    with there:
        pass
    assert (here.overlaps, there.overlaps) == (0, 1)


def test_a_ratio_is_taken_within_its_round() -> None:
    results = Results()
    # A machine that grows slower and slower: of all rounds together the ratio would be wrong.
    for number, weather in enumerate((1.0, 2.0, 10.0)):
        results.add(Row("pairs", "pin", "ours", number, {"p50_us": 3 * weather}))
        if number != 1:
            results.add(Row("pairs", "pin", "floor", number, {"p50_us": 2 * weather}))
    target = Target("pair", "p50 by floor", 1.5, "pairs", ["pin"], by="floor")
    assert target.measured(results) == [1.5, 1.5]
    assert not target.missed(results)
    assert not target.met(1.51)
    unknown = Target("pair", "p50 by redlock-py", 1.5, "pairs", ["pin"], by="redlock-py")
    assert unknown.measured(results) == []


def test_the_worst_of_several_cases_and_contenders_counts() -> None:
    results = Results()
    for case, name, value in (("a", "x", 1.0), ("a", "y", 3.0), ("b", "x", 2.0), ("b", "y", 0.5)):
        results.add(Row("faults", case, name, 0, {"p50_us": value}))
    target = Target("pair", "p50", 9, "faults", ["a", "b"], of=["x", "y"])
    assert target.measured(results) == [3.0]
    assert replace(target, most=False).measured(results) == [0.5]
    assert replace(target, by_case="a").measured(results) == [2.0]


def test_turns_between_two_common_moments_are_counted() -> None:
    before, after = [-1.0, -0.9, -0.1], [4.0, 6.0, 6.5]
    mine = [before, [0.0, 0.0, 1.0], [1.0, 2.5, 3.0]]
    yours = [[-3.0, 1.5, 2.0], after]
    figures = together([mine, yours], begin=0.0, end=5.0)
    # Handed over at 1.0 and at 2.0; no process waited at 3.0.
    assert figures["max_us"] == pytest.approx(0.5e6)
    assert figures["share"] == 2.0
    assert figures["longest_wait_ms"] == pytest.approx(2000.0)  # from 4.0 to 6.0
    assert figures["turns"] == 3
    assert figures["per_s"] == pytest.approx(0.6)


def test_a_process_without_a_turn_counts_as_half_a_turn() -> None:
    figures = together([[[0.0, 0.0, 1.0]], [[0.0, 9.0, 9.5]]], begin=0.0, end=5.0)
    assert (figures["share"], figures["fewest"]) == (2.0, 0)


@pytest.mark.parametrize("turns", [[[], []], [[[0.0, 9.0, 9.5]], []]])
def test_a_round_in_which_no_process_takes_a_turn_has_failed(
    turns: list[list[list[float]]],
) -> None:
    with pytest.raises(WorkerFailed, match="no process took a turn in 5 s"):
        together(turns, begin=0.0, end=5.0)
