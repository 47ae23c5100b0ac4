"""Three real celery beats under `manage.py lead`: one sends, also while leaders are killed."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.leading.supervisors import Supervisors, is_alive, moment
from tests.live.test_leading import SHORT, TAKEOVER, leading, three, until_queued
from tests.waiting import stalls, until

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

__all__ = ["leading", "three"]  # fixtures

pytestmark = [pytest.mark.live, pytest.mark.slow]

INTERVAL = 0.5  # as in tests/live/leading/beat.py
BEAT = "-A tests.live.leading.beat beat --pidfile= --loglevel=ERROR"


def ticks(messages: Path) -> list[tuple[float, str]]:
    """Return when each message was sent, by the clock of the notes, and by which process."""
    found = []
    for path in messages.iterdir():
        if message := path.read_text():  # a beat ends with its leader, also before it writes
            sender = json.loads(message)["headers"]["origin"]
            found.append((int(path.name.partition("_")[0]) / 1000, sender))
    return sorted(found)


def two_ticks(messages: Path) -> None:
    """Wait until two more messages have been sent."""
    before = len(os.listdir(messages))
    until(lambda: len(os.listdir(messages)) >= before + 2, "two ticks")


@pytest.mark.parametrize("kills", [1, pytest.param(60, marks=pytest.mark.nightly, id="10-minutes")])
def test_one_of_three_beats_sends_and_no_tick_twice(
    leading: Supervisors, three: list[LocalMaster], kills: int, tmp_path: Path
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
        until_queued(three, 2)
        time.sleep(7 if kills > 1 else 0)
        with stalls() as late:
            leader = leading.leader()
            killed = moment()
            leader.kill()
            # A beat notes its start when Celery is loaded, which takes a second or more.
            took = leading.next_start(done + 1).at - killed - late()
            slowest = max(slowest, took)
        leader.wait()
        if done + 1 < kills:
            leading.start(*SHORT, program=beat)
    two_ticks(messages)
    leading.end()
    until(lambda: not is_alive(leading.starts()[-1].pid), "the end of the last beat")
    sent = ticks(messages)
    assert leading.overlaps() == 0
    assert len(sent) >= 2 * (kills + 1)
    senders = [sender for sender, _ in itertools.groupby(sent, key=itemgetter(1))]
    assert len(senders) == len({*senders}) > kills, "a beat sent after another had begun"
    # Not within a term: a beat that is stopped before it sends makes up for it.
    gaps = [late[0] - early[0] for early, late in itertools.pairwise(sent) if late[1] != early[1]]
    assert min(gaps) > INTERVAL / 2, "a tick was sent twice"
    assert slowest <= TAKEOVER + 5, f"the slowest takeover took {slowest:.2f} s"
