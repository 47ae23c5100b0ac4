"""The page of the benchmarks gives the reasons for missed targets, with figures of the run."""

from __future__ import annotations

from benchmarks.reasons import FIGURES, REASONS, reason
from benchmarks.report import markdown
from benchmarks.results import Results, Row
from benchmarks.targets import TARGETS


def test_a_crowd_that_misses_its_target_is_reported_with_what_the_floor_reaches() -> None:
    rates = {"ours": 500.0, "floor": 400.0, "redis-py": 1000.0}
    results = Results()
    for name, rate in rates.items():
        figures = {"per_s": rate, "failed_share": 0.0, "cpu_us": 200.0, "servers_us": 100.0}
        results.add(Row("crowd", "free", "20 × 8", name, 0, figures))
    page = markdown(results)
    assert "distinct keys, pairs/s by redis-py: 0.5\n" in page
    assert "reached 0.4 × redis-py in this run." in page
    assert "ours 200 + 100 µs, floor 200 + 100 µs, redis-py 200 + 100 µs." in page


def test_a_page_of_targets_missed_without_figures_has_their_reasons() -> None:
    results = Results(rows=[Row("hot", "pin", "one", "ours", 0, {"cpu_us": 90.0})])
    assert "pair_parts" in markdown(results)
    for profile in FIGURES:
        assert reason(profile, results).endswith(f"What would help: {REASONS[profile].remedy}.")


def test_every_target_that_may_be_missed_for_a_reason_names_one() -> None:
    assert {target.profile for target in TARGETS} - {""} <= {*REASONS}
    assert reason("", Results()) == "Why was not examined."
