"""The soak in short: a pause at the worst moment, with fencing and without, and some seconds.

The long one is a command: `uv run python -m tests.live.soak`.
"""

from __future__ import annotations

from collections import Counter
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from tests.live.soak import ledger
from tests.live.soak.crew import crew
from tests.live.soak.history import overslept
from tests.live.soak.report import Report
from tests.live.soak.soaking import soak
from tests.live.soak.worker import Task, lock_settings

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def reports(
    masters: list[LocalMaster], postgres: dict[str, Any], settings: Settings
) -> tuple[Report, Report]:
    """With fencing and without: one worker is stopped between reading and writing.

    It goes on when another one has written. Both at once, as each waits for a TTL.
    """
    urls = [master.url for master in masters]
    settings.REDLOCK = lock_settings(urls)
    call_command("redlock_init", stdout=StringIO())
    ledger.make(postgres, ["fenced", "unfenced"])
    with (
        crew(Task(urls, postgres, ["fenced"], "w", fenced=True)) as fenced,
        crew(Task(urls, postgres, ["unfenced"], "w", fenced=False)) as unfenced,
    ):
        late, others = ([crew.hire(gated=True) for crew in (fenced, unfenced)] for _ in "12")
        for worker in late:
            worker.go_on()
        for worker in late:
            worker.wait_for("read")
            worker.stop()
        for worker in others:
            worker.go_on()
        for worker in others:
            worker.wait_for("read")  # it is granted the lock when the TTL is over
            worker.go_on()
            worker.wait_for("released")
        for worker in late:
            worker.resume()
            worker.go_on()
            worker.wait_for("released")
        assert fenced.go_home() + unfenced.go_home() == []
        one, other = (
            Report(how, 0.0, Counter(), members.events, *ledger.seen(postgres, [name]))
            for members, how, name in ((fenced, True, "fenced"), (unfenced, False, "unfenced"))
        )
    return one, other


def test_a_worker_that_is_stopped_between_reading_and_writing(
    reports: tuple[Report, Report],
) -> None:
    fenced, unfenced = reports
    for report in reports:
        assert report.broken() == []
        _, met_a_newer_one = overslept(report.holds)
        assert met_a_newer_one == 1
    refused = [event.entry for event in fenced.events if event.what == "rejected"]
    assert (refused, fenced.lost, fenced.out_of_turn) == (["w.1:1"], [], [])
    assert unfenced.lost == ["w.2:1"]
    [why] = unfenced.out_of_turn
    assert "accepted after fence" in why


def test_a_short_soak(masters: list[LocalMaster], postgres: dict[str, Any]) -> None:
    report, broken = soak(
        masters, postgres, seconds=1, fenced=True, seed=1, workers=2, registers=1, every=0.2
    )
    assert broken == []
    assert report.total > 0
