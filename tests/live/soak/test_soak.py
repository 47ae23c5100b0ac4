"""A short soak: a pause at the worst moment, with and without fencing, and random faults.

The long one is a command: `uv run python -m tests.live.soak`.
"""

from __future__ import annotations

from collections import Counter
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from tests.live.soak import ledger
from tests.live.soak.history import late_holders
from tests.live.soak.processes import workers_for
from tests.live.soak.report import Report
from tests.live.soak.run import soak
from tests.live.soak.worker import Task, lock_settings

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def reports(
    masters: list[LocalMaster], postgres: dict[str, Any], settings: Settings
) -> tuple[Report, Report]:
    """Return a report with fencing and one without: a worker is stopped between read and write.

    It continues after another worker has written. Both run at once, since each waits for a TTL.
    """
    urls = [master.url for master in masters]
    settings.REDLOCK = lock_settings(urls)
    call_command("redlock_init", stdout=StringIO())
    ledger.make(postgres, ["fenced", "unfenced"])
    with (
        workers_for(Task(urls, postgres, ["fenced"], "w", fenced=True)) as fenced,
        workers_for(Task(urls, postgres, ["unfenced"], "w", fenced=False)) as unfenced,
    ):
        late, others = ([workers.start(gated=True) for workers in (fenced, unfenced)] for _ in "12")
        for worker in late:
            worker.open_gate()
        for worker in late:
            worker.wait_for("read")
            worker.stop()
        for worker in others:
            worker.open_gate()
        for worker in others:
            worker.wait_for("read")  # it acquires the lock when the TTL is over
            worker.open_gate()
            worker.wait_for("released")
        for worker in late:
            worker.resume()
            worker.open_gate()
            worker.wait_for("released")
        assert fenced.finish() + unfenced.finish() == []
        one, other = (
            Report(how, 0.0, Counter(), workers.events, *ledger.seen(postgres, [name]))
            for workers, how, name in ((fenced, True, "fenced"), (unfenced, False, "unfenced"))
        )
    return one, other


@pytest.mark.fault
@pytest.mark.nightly  # by day, tests/live/fencing/test_pause.py has such a pause
def test_a_worker_that_is_stopped_between_reading_and_writing(
    reports: tuple[Report, Report],
) -> None:
    fenced, unfenced = reports
    for report in reports:
        assert report.broken() == []
        _, met_a_newer_one = late_holders(report.leases)
        assert met_a_newer_one == 1
    refused = [event.entry for event in fenced.events if event.what == "rejected"]
    assert (refused, fenced.lost, fenced.out_of_turn) == (["w.1:1"], [], [])
    assert unfenced.lost == ["w.2:1"]
    [why] = unfenced.out_of_turn
    assert "accepted after fence" in why


@pytest.mark.nightly  # by day, other tests have these faults, and test_history.py the verdict
def test_a_short_soak(masters: list[LocalMaster], postgres: dict[str, Any]) -> None:
    report, broken = soak(
        masters, postgres, seconds=1, fenced=True, seed=1, workers=2, registers=1, every=0.2
    )
    assert broken == []
    assert report.total > 0
