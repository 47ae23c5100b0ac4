"""`manage.py lead` with real processes and masters: one program at a time, and soon the next."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from redlock_django.locking.services import locks
from tests.live.leading.supervisors import (
    Supervisors,
    children,
    is_alive,
    moment,
    supervisors,
)
from tests.waiting import stalls, until

if TYPE_CHECKING:
    from pathlib import Path

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.slow]

TTL = 3.0
SHORT = ["--ttl", "3", "--grace", "0.5"]
TAKEOVER = TTL + 1.0
"""Seconds after which another process leads if the leader is killed."""


def settings_for(masters: list[LocalMaster]) -> dict[str, dict[str, Any]]:
    """Return REDLOCK for a site with these masters."""
    section = {
        "MASTERS": [master.url for master in masters],
        "MASTER_TIMEOUT": 0.5,
        "CONNECT_TIMEOUT": 2.0,
        "RESTART_DELAY": 0,
    }
    return {"default": section}


@pytest.fixture
def three(masters: list[LocalMaster]) -> Iterator[list[LocalMaster]]:
    """Return three masters that are declared new, and run again afterwards."""
    redlock = settings_for(masters[:3])
    with override_settings(REDLOCK=redlock):
        call_command("redlock_init", stdout=StringIO())
        locks.close()
    yield masters[:3]
    for master in masters[:3]:
        master.resume()


@pytest.fixture
def leading(three: list[LocalMaster], tmp_path: Path) -> Iterator[Supervisors]:
    """Return supervisors that use the three masters."""
    with supervisors(tmp_path, settings_for(three)) as made:
        yield made


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.nightly, id="10-minutes")])
def test_a_killed_leader_is_followed_in_time_and_never_by_two(
    leading: Supervisors, kills: int
) -> None:
    for _ in range(3):
        leading.start(*SHORT)
    slowest = 0.0
    for done in range(kills):
        leading.next_start(done)
        if kills > 3:
            time.sleep(7)
        with stalls() as late:
            leader = leading.leader()
            killed = moment()
            leader.kill()
            took = leading.next_start(done + 1).at - killed - late()
            slowest = max(slowest, took)
        leader.wait()
        leading.start(*SHORT)
    assert leading.overlaps() == 0
    assert slowest <= TAKEOVER, f"{kills} kills: the slowest takeover took {slowest:.2f} s"


def test_a_leader_that_ends_cleanly_is_followed_at_once(leading: Supervisors) -> None:
    options = ["--ttl", "20"]
    first = leading.start(*options)
    leading.next_start(0)
    leading.start(*options)
    time.sleep(3)  # it is in the queue
    ended = moment()
    first.send_signal(signal.SIGTERM)
    assert leading.next_start(1).at - ended < 5  # not after the TTL of 20 s
    assert first.wait(30) == 128 + signal.SIGTERM
    assert leading.overlaps() == 0


@pytest.mark.parametrize("words", [[], ["stubborn"]], ids=["", "ignoring-sigterm"])
def test_a_leader_that_is_stopped_loses_its_program_before_the_lock_ends(
    leading: Supervisors, words: list[str]
) -> None:
    """Only the supervisor is stopped: its program runs on, until the keeper ends it."""
    for _ in range(2):
        leading.start(*SHORT, program=leading.program(*words))
    first = leading.next_start(0)
    leader = leading.leader()
    with stalls() as late:
        stopped = moment()
        leader.send_signal(signal.SIGSTOP)
        second = leading.next_start(1)
        assert second.at - stopped - late() <= TAKEOVER
    assert not is_alive(first.pid)
    assert second.supervisor != first.supervisor
    leader.send_signal(signal.SIGCONT)
    time.sleep(1)
    leading.leader().kill()  # the first one campaigns again, and leads
    assert leading.next_start(2).supervisor == first.supervisor
    assert leading.overlaps() == 0


def test_a_program_that_ignores_sigterm_is_killed_with_its_supervisor(
    leading: Supervisors,
) -> None:
    for _ in range(2):
        leading.start(*SHORT, program=leading.program("stubborn"))
    first = leading.next_start(0)
    leading.leader().kill()
    leading.next_start(1)
    assert not is_alive(first.pid)
    assert leading.overlaps() == 0


@pytest.mark.parametrize("command", ["lead", "with_lock"])
def test_grandchildren_end_when_the_supervisor_is_killed(
    leading: Supervisors, command: str
) -> None:
    shell = ["sh", "-c", '"$@" & wait', "sh", *leading.program()]
    supervisor = leading.start("--ttl", "3", program=shell, command=command)
    grandchild = leading.next_start(0)
    supervisor.kill()
    until(lambda: not is_alive(grandchild.pid), "its end", seconds=TAKEOVER)


def test_the_program_ends_with_its_keeper_and_a_grandchild_may_stay(leading: Supervisors) -> None:
    """Both processes above the program are killed: the system ends the program, and it alone."""
    shell = ["sh", "-c", '"$@" & wait', "sh", *leading.program()]
    supervisor = leading.start(*SHORT, program=shell)
    grandchild = leading.next_start(0)
    [keeper] = children(supervisor.pid)
    [program] = children(keeper)
    supervisor.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    supervisor.kill()
    until(lambda: not is_alive(program), "the end of the program", seconds=10)
    assert is_alive(grandchild.pid)


def test_a_leader_whose_keeper_is_killed_ends_the_whole_group(leading: Supervisors) -> None:
    shell = ["sh", "-c", '"$@" & wait', "sh", *leading.program()]
    supervisor = leading.start(*SHORT, program=shell)
    grandchild = leading.next_start(0)
    [keeper] = children(supervisor.pid)
    os.kill(keeper, signal.SIGKILL)
    assert supervisor.wait(30) == 128 + signal.SIGKILL
    until(lambda: not is_alive(grandchild.pid), "its end", seconds=10)


def test_masters_that_come_and_go_never_admit_two(
    leading: Supervisors, three: list[LocalMaster]
) -> None:
    for _ in range(2):
        leading.start(*SHORT)
    leading.next_start(0)
    for away in (0.4, TTL + 1, 0.8, TTL + 1):
        for master in three[:2]:
            master.pause()
        time.sleep(away)
        for master in three[:2]:
            master.resume()
        time.sleep(0.7)
    before = len(leading.starts())
    assert before >= 2  # a long outage ends the program, and a leader is found again
    until(lambda: is_alive(leading.starts()[-1].pid), "a leader", seconds=30)
    assert leading.overlaps() == 0
    assert all(process.poll() is None for process in leading.processes)


def test_a_candidate_starts_before_its_masters(
    leading: Supervisors, three: list[LocalMaster]
) -> None:
    for master in three:
        master.pause()
    supervisor = leading.start(*SHORT)
    time.sleep(3)
    assert supervisor.poll() is None
    for master in three:
        master.resume()
    leading.next_start(0)


def test_a_program_that_ends_ends_the_supervisor(leading: Supervisors) -> None:
    supervisor = leading.start(*SHORT, program=["sh", "-c", "sleep 60 & exit 5"])
    assert supervisor.wait(60) == 5


def test_a_signal_is_forwarded(leading: Supervisors) -> None:
    code = f"trap 'exit 9' HUP; {subprocess.list2cmdline(leading.program())} & wait"
    supervisor = leading.start(*SHORT, program=["sh", "-c", code])
    leading.next_start(0)
    supervisor.send_signal(signal.SIGHUP)
    assert supervisor.wait(30) in (9, 128 + signal.SIGHUP)
