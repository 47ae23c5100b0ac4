"""Three real celery beats under `manage.py lead`: one sends, also while leaders are killed."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.live.leading.supervisors import Supervisors, is_alive, moment
from tests.live.test_leading import SHORT, TAKEOVER, leading, three
from tests.waiting import stalls, until

__all__ = ["leading", "three"]  # fixtures

pytestmark = [pytest.mark.live, pytest.mark.slow]

INTERVAL = 1.0  # as in tests/live/leading/beat.py
BEAT = "-A tests.live.leading.beat beat --pidfile= --loglevel=ERROR"


def ticks(messages: Path) -> list[tuple[float, str]]:
    """Return when each message was sent, by the clock of the notes, and by which process."""
    found = []
    for path in messages.iterdir():
        sender = json.loads(path.read_text())["headers"]["origin"]
        found.append((int(path.name.partition("_")[0]) / 1000, sender))
    return sorted(found)


def two_ticks(messages: Path) -> None:
    """Wait until two more messages have been sent."""
    before = len(os.listdir(messages))
    until(lambda: len(os.listdir(messages)) >= before + 2, "two ticks")


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.nightly, id="10-minutes")])
def test_one_of_three_beats_sends_and_no_tick_twice(
    leading: Supervisors, kills: int, tmp_path: Path
) -> None:
    messages = tmp_path / "messages"
    messages.mkdir()
    leading.environment["BEAT_DIRECTORY"] = str(tmp_path)
    beat = ["sh", "-c", f"exec {sys.executable} -m celery {BEAT} --schedule {tmp_path}/schedule-$$"]
    for _ in range(3):
        leading.start(*SHORT, program=beat)
    slowest = 0.0
    for done in range(kills):
        leading.next_start(done)
        two_ticks(messages)
        time.sleep(7 if kills > 2 else 0)
        with stalls() as late:
            leader = leading.leader()
            killed = moment()
            leader.kill()
            # A beat notes its start when Celery is loaded, which takes a second or more.
            took = leading.next_start(done + 1).at - killed - late()
            slowest = max(slowest, took)
        leader.wait()
        leading.start(*SHORT, program=beat)
    two_ticks(messages)
    leading.end()
    until(lambda: not is_alive(leading.starts()[-1].pid), "the end of the last beat")
    sent = ticks(messages)
    assert leading.overlaps() == 0
    assert len(sent) >= 2 * (kills + 1)
    assert len({sender for _, sender in sent}) >= kills
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(sent)]
    assert min(gaps) > INTERVAL / 2, "a tick was sent twice"
    assert slowest <= TAKEOVER + 5, f"the slowest takeover took {slowest:.2f} s"
