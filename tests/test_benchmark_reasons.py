"""The page of the benchmarks gives the reasons for missed targets, with figures of the run."""

from __future__ import annotations

from importlib import import_module

from benchmarks import workloads
from benchmarks.harness import report
from benchmarks.harness.results import Results, Row

WORKLOADS = workloads.load().values()
REASONS = {target.reason for each in WORKLOADS for target in each.targets} - {None}


def test_a_crowd_that_misses_its_target_is_reported_with_what_the_floor_reaches() -> None:
    rates = {"ours": 500.0, "floor": 400.0, "redis-py": 1000.0}
    results = Results()
    for name, rate in rates.items():
        figures = {"per_s": rate, "failed_share": 0.0, "cpu_us": 200.0, "servers_us": 100.0}
        results.add(Row("crowd", "free", "20 × 8", name, 0, figures))
    page = report.page(results, WORKLOADS)
    assert "- **20 processes with 8 threads each (pairs/s by redis-py)**: All processes" in page
    assert "reached 0.4 × redis-py in this run." in page
    assert "ours 200 + 100 µs, floor 200 + 100 µs, redis-py 200 + 100 µs." in page


def test_a_page_of_targets_missed_without_figures_has_their_reasons() -> None:
    results = Results(rows=[Row("hot", "pin", "one", "ours", 0, {"cpu_us": 90.0})])
    assert "pair_parts" in report.page(results, WORKLOADS)
    for reason in REASONS:
        assert reason is not None
        assert reason.text(results).endswith(f"What would help: {reason.remedy}.")


def test_a_target_that_is_missed_without_a_reason_says_so() -> None:
    figures = {"per_s": 500.0, "failed_share": 0.5, "cpu_us": 200.0, "servers_us": 100.0}
    results = Results(rows=[Row("crowd", "free", "20 × 8", "ours", 0, figures)])
    assert "Why was not examined." in report.page(results, WORKLOADS)


def test_reasons_have_different_names() -> None:
    names = [reason.name for reason in REASONS if reason]
    assert len(names) == len({*names})
    assert {*import_module("benchmarks.workloads.profiles").JOBS} <= {*names}
