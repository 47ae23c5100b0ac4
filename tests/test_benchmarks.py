"""The benchmarks run, and notice a lock that does not exclude."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import __main__ as run
from benchmarks import workloads
from benchmarks.harness.machine import Others, _used_by_others
from benchmarks.harness.plan import Plan
from benchmarks.harness.report import page as page_of
from benchmarks.harness.results import Failure, Results, Row, Where
from benchmarks.harness.workload import Target, WorkerFailed, Workload
from benchmarks.peers.ours import PATIENCE
from benchmarks.programs import stores
from benchmarks.servers import compiler, granting
from benchmarks.site import VIEWS
from benchmarks.worker.bench import Threads, complete
from benchmarks.worker.contender import Contender
from benchmarks.worker.witness import Intruder, Turnstile
from benchmarks.workloads import crowd
from benchmarks.workloads.handoff import together
from benchmarks.workloads.pairs import pairs
from benchmarks.workloads.refusals import refusals
from benchmarks.workloads.views import orders
from redlock_django.testing import LocalMaster

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_one_command_measures_the_project_beside_the_floor_and_reports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--workloads"]
    command += ["pairs,hot,idempotency", "--pin", "--peers", "floor", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    results = Results.load(tmp_path / "benchmarks.json")
    assert results.names("contender", workload="pairs") == ["ours", "floor", "ours async"]
    for row in results.find(workload="pairs"):
        assert row.figures["pairs"] > 0
        assert row.figures["failed"] == 0
        assert row.figures["looks"] > 0
        assert row.figures["overlaps"] == 0
    (hot,) = results.find(workload="hot")
    assert 0 < hot.figures["cpu_us"] < 10_000
    assert 100 < hot.figures["calls"] < 1_000
    assert "replay" in results.names("contender", workload="idempotency")
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| acquire + release, one thread | pin: client CPU by floor | ≤ 1.8× |" in page
    assert "|  | pin: p50 by floor | ≤ 1.2× |" in page
    assert page.splitlines()[2].startswith("Measured on 20")
    assert "| redlock-py |" not in page
    ET.parse(tmp_path / "benchmarks.svg")


def test_unknown_arguments_are_reported_before_any_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--workloads", "pears"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "pears" in said
    assert "refusals" in said


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
    with Intruder(places, NoLock()) as intruder:
        figures = complete(job(Threads(NoLock(), intruder), seconds=0.1, warm_up=0.0))
    assert figures["overlaps"] > 0

    results = Results()
    results.add(Row("pairs", "free", "one", "no lock", 0, figures))
    assert "did NOT exclude" in results.troubles[0]


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
def test_stub_masters_grant_everything_but_a_second_holder() -> None:
    with granting(5) as (ports, _):
        places = [("127.0.0.1", port) for port in ports]
        program = (
            "import json, sys\n"
            "from benchmarks.peers.ours import Threads\n"
            "contender = Threads(json.loads(sys.argv[1]))\n"
            "held = [contender.acquire('bench:-pair:000%d' % number) for number in range(3)]\n"
            "for each in held: contender.release(each)\n"
            "print(len(held))\n"
        )
        command = [sys.executable, "-c", program, json.dumps(places)]
        patient = {**os.environ, PATIENCE: "1.0"}
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=patient
        )
        assert done.stdout == "3\n", done.stderr
        with Intruder(places, NoLock()) as intruder:
            intruder.look("order:1")
            assert intruder.overlaps == 0


def markdown(results: Results) -> str:
    """Return the page of all workloads."""
    return page_of(results, workloads.load().values())


def _asked(
    name: str, place: tuple[str, str, tuple[str, ...]], measure: Any, parts: str = ""
) -> Workload:
    """Return a workload with one setting, one case and these contenders."""
    setting, case, names = place
    return Workload(name, (setting,), lambda _: [(case, names)], measure=measure, parts=parts)


def _plan(**options: Any) -> Plan:
    """Return a plan whose measurements use neither masters nor processes."""
    unused: Any = None
    return Plan(unused, Results(), unused, 1, 0.1, tell=lambda text: None, **options)


def test_a_measurement_that_fails_is_reported_and_the_others_are_kept() -> None:
    def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
        if name == "ours":
            raise ConnectionError("no master")
        return {"p50_us": 100.0}

    plan = _plan()
    plan.run(_asked("refusals", ("pin", "one", ("ours", "floor")), measure))
    results = plan.results
    assert results.troubles == [
        "refusals, pin, one, ours, round 1: failed: ConnectionError: no master"
    ]
    page = markdown(results)
    assert "| refuse a held lock | pin: p50 by floor | ≤ 2× | **failed** |" in page
    assert "| floor | 100 |" in page
    assert "| ours | failed |" in page
    assert "acquire + release" not in page  # was not to be measured


def test_a_part_of_a_failed_measurement_has_failed() -> None:
    def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
        raise WorkerFailed("never answered")

    plan = _plan()
    plan.run(_asked("faults", ("free", "all", ("ours",)), measure, parts="case"))
    page = markdown(plan.results)
    assert "| three of five hung | a refusal, once known | ≤ 1 000 µs | **failed** |" in page


def test_a_measurement_is_repeated_while_other_programs_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = iter([0.5, 0.3, 0.9, 0.0])
    monkeypatch.setattr(Others, "share", lambda self: next(shares))
    taken = iter([1.0, 2.0, 3.0, 4.0])

    def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
        return {"p50_us": next(taken), "overlaps": 1}

    plan = _plan(repeats=9)
    plan.run(_asked("pairs", ("pin", "one", ("ours",)), measure))
    (row,) = plan.results.rows
    assert row.figures == {"p50_us": 2.0, "overlaps": 1, "others": 0.3}
    assert len(plan.results.troubles) == 3  # an overlap counts, also where it is not the best
    assert plan.repeats == 7  # two repeats of each measurement at most
    plan.run(_asked("pairs", ("pin", "one", ("floor",)), measure))
    assert plan.results.rows[-1].figures["p50_us"] == 4.0


def test_figures_of_a_crowd_are_those_of_all_its_processes() -> None:
    one = {"per_s": 10.0, "p99_us": 2.0, "max_us": 3.0, "failed": 0, "looks": 1, "overlaps": 0}
    said = [{**one, "pairs": 10, "cpu_us": 100.0}, {**one, "pairs": 30, "cpu_us": 200.0}]
    figures = crowd.together(said)
    assert (figures["pairs"], figures["per_s"], figures["looks"]) == (40, 20.0, 2)
    assert figures["cpu_us"] == 175.0


def test_programs_of_this_run_are_not_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        others = {pid for pid, _ in _used_by_others()}
        assert 1 in others
        assert {os.getpid(), child.pid}.isdisjoint(others)


@pytest.mark.parametrize(
    ("others", "said"),
    [(0.02, "on a quiet machine (load 1.50 before"), (0.4, "**The machine was busy")],
)
def test_the_page_begins_with_the_date_and_the_load_of_the_machine(
    others: float, said: str
) -> None:
    about = {"date": "2026-11-23", "cores": 2, "load at the start": "1.50 2 3"}
    row = Row("pairs", "pin", "one", "ours", 0, {"p50_us": 3.0, "others": others})
    first = markdown(Results(about, [row])).splitlines()[2]
    assert first.startswith("Measured on 2026-11-23")
    assert said in first
    assert f"other programs used {others / 2:.1%}" in first


@pytest.mark.slow
def test_an_interrupted_run_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(asked: object, results: Results) -> None:
        results.add(Row("hot", "pin", "one", "ours", 0, {"cpu_us": 40.0}))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "peer_versions", lambda names: {})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(tmp_path)])
    assert run.main() == 1
    assert "TROUBLE: the run was interrupted" in capsys.readouterr().err
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| client CPU | ≤ 45 µs | 40 µs |" in page
    assert "- **trouble**: the run was interrupted" in page


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
        results.add(Row("pairs", "pin", "one", "ours", number, {"p50_us": 3 * weather}))
        if number != 1:
            results.add(Row("pairs", "pin", "one", "floor", number, {"p50_us": 2 * weather}))
    ours = Where("pairs", "pin", "one", "ours")
    values = ours.by("floor")
    assert values(results) == [1.5, 1.5]
    target = Target("pair", "p50 by floor", 1.5, values)
    assert target.met(target.measured(results) or 0.0)
    assert not target.met(1.51)
    unknown = Target("pair", "p50 by pottery", 1.5, ours.by("pottery"))
    assert unknown.measured(results) is None


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = Results({"cores": 2}, [Row("pairs", "pin", "one", "ours", 0, {"p50_us": 3.0})])
    results.fail(Failure("pairs", "pin", "one", "floor", 1, "never answered"))
    results.save(tmp_path / "benchmarks.json")
    assert Results.load(tmp_path / "benchmarks.json") == results
    assert results.median(Where("pairs", "pin", "one", "ours"), "p50_us") == 3.0


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


@pytest.mark.parametrize("count", [2, 4, 6, 8])
def test_the_views_are_requested_in_orders_that_favour_none(count: int) -> None:
    """Each view has each place once, and follows each other one once."""
    found = orders(count)
    places = range(count)
    assert all(sorted(order) == [*places] for order in (*found, *zip(*found, strict=True)))
    pairs = [pair for order in found for pair in pairwise(order)]
    assert len(pairs) == len({*pairs}) == count * (count - 1)
    assert len(VIEWS) % 2 == 0


@pytest.mark.nightly
@pytest.mark.live
def test_the_stores_are_measured_in_one_run_and_runs_are_added_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "stores", "--stores", "redis1,sqlite"]
    command += ["--out", str(tmp_path), "--add"]
    for more in (["--rounds", "1", "--kills", "0"], ["--rounds", "1", "--kills", "1"]):
        done = subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
    results = Results.load(tmp_path / "stores.json")
    names = ["one Redis master", "redis-py's Lock, one Redis master", "SQLite"]
    assert results.names("contender") == names
    for name in names:
        for case in ("pair", "refusal", "hand-off", "threads"):
            assert [row.round for row in results.find(case=case, contender=name)] == [0, 1]
    (kill,) = results.find(case="kill")
    assert 0 < kill.figures["max_us"] < 5e6
    assert "| one Redis master |" in (tmp_path / "stores.md").read_text()


def test_a_store_that_is_not_known_is_reported_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--stores", "redis5,oracle"])
    with pytest.raises(SystemExit):
        stores.main()
    assert "oracle: not one of redis5, redis1, postgresql" in capsys.readouterr().err
