"""`manage.py lead` with real processes and masters: one program at a time, and soon the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.test import override_settings

from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster
from tests.live.left_over import values
from tests.looking import looking_at
from tests.programs import ROOT
from tests.waiting import stalls, until

PROGRAM = Path(__file__).with_name("noted_program.py")


class Start(NamedTuple):
    """The start of a program: its process, the moment, and the number of its supervisor."""

    pid: int
    at: float
    supervisor: int


class Supervisors:
    """Processes that campaign for one name, with numbers from 0."""

    def __init__(self, directory: Path, redlock: dict[str, Any]) -> None:
        self.notes = directory / "notes"
        self.notes.touch()
        code = f"from testproject.settings import *\nREDLOCK = {redlock!r}\n"
        (directory / "leading.py").write_text(code)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "leading",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def program(self, *words: str) -> list[str]:
        """Return the command of the program that notes its starts."""
        return [sys.executable, "-S", str(PROGRAM), str(self.notes), *words]

    def start(
        self, *options: str, program: list[str] | None = None, command: str = "lead"
    ) -> subprocess.Popen[bytes]:
        """Start a supervisor."""
        with (self.notes.parent / "errors").open("ab") as errors:
            process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        str(ROOT / "manage.py"),
                        command,
                        "scheduler",
                        *options,
                        "--",
                    ),
                    *(program or self.program()),
                ],
                env={**self.environment, "SUPERVISOR": str(len(self.processes))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def _lines(self) -> list[list[str]]:
        # The last line may not be whole yet.
        return [line.split() for line in self.notes.read_text().splitlines(keepends=True)
                if line.endswith("\n")]  # fmt: skip

    def starts(self) -> list[Start]:
        """Return the starts of programs so far."""
        return [
            Start(int(pid), float(at), int(supervisor))
            for word, pid, at, supervisor in self._lines()
            if word == "start"
        ]

    def overlaps(self) -> int:
        """Return how often a program started while another was alive."""
        return sum(line[0] == "two" for line in self._lines())

    def next_start(self, before: int) -> Start:
        """Wait for the start after the first `before` ones."""
        until(lambda: len(self.starts()) > before, "the next start")
        return self.starts()[before]

    def leader(self) -> subprocess.Popen[bytes]:
        """Return the supervisor whose program started last."""
        return self.processes[self.starts()[-1].supervisor]

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            process.kill()
            process.wait()
        for start in self.starts():
            with suppress(FileNotFoundError, ProcessLookupError):
                if str(PROGRAM) in Path(f"/proc/{start.pid}/cmdline").read_text():
                    os.kill(start.pid, signal.SIGKILL)


@contextmanager
def supervisors(directory: Path, redlock: dict[str, Any]) -> Iterator[Supervisors]:
    """Yield supervisors that use these settings; none is left after the block."""
    made = Supervisors(directory, redlock)
    try:
        yield made
    finally:
        made.end()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the open, or before the read
        return False


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def sockets(pid: int) -> int:
    """Return how many sockets a process has."""
    found = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return found


def moment() -> float:
    """Return the clock of the notes."""
    return time.monotonic()


pytestmark = [pytest.mark.live, pytest.mark.slow]

TTL = 5.0
SHORT = ["--ttl", "5"]
"""A TTL whose end a test waits for: a leader that the machine stops for 2 s loses the lead."""
CONNECT_TIMEOUT = 2.0
LONG = ["--ttl", "60"]
TAKEOVER = TTL + 1.0
"""Seconds after which another process leads if the leader is killed."""


def settings_for(masters: list[LocalMaster]) -> dict[str, dict[str, Any]]:
    """Return REDLOCK for a site with these masters."""
    section = {
        "MASTERS": [master.url for master in masters],
        "MASTER_TIMEOUT": 0.5,
        "CONNECT_TIMEOUT": CONNECT_TIMEOUT,
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


def until_queued(masters: list[LocalMaster], many: int) -> None:
    """Wait until so many candidates are in the queue of each master."""

    def queued() -> bool:
        queues = [looking_at(master).zcard("redlock:queue:scheduler") for master in masters]
        return bool(min(queues) >= many)

    until(queued, f"{many} candidates in the queue")


@pytest.mark.parametrize(
    ("kills", "words"),
    [
        pytest.param(2, ["stubborn"], id="ignoring-sigterm"),
        pytest.param(60, [], marks=pytest.mark.nightly, id="10-minutes"),
    ],
)
def test_a_killed_leader_is_followed_in_time_and_never_by_two(
    leading: Supervisors, three: list[LocalMaster], kills: int, words: list[str]
) -> None:
    for _ in range(3):
        leading.start(*SHORT, program=leading.program(*words))
    slowest = 0.0
    for done in range(kills):
        program = leading.next_start(done)
        until_queued(three, 2)
        if kills > 3:
            time.sleep(7)
        with stalls() as late:
            leader = leading.leader()
            killed = moment()
            leader.kill()
            took = leading.next_start(done + 1).at - killed - late()
            slowest = max(slowest, took)
        assert not is_alive(program.pid)
        leader.wait()
        if done + 1 < kills:
            leading.start(*SHORT, program=leading.program(*words))
    assert leading.overlaps() == 0
    assert slowest <= TAKEOVER, f"{kills} kills: the slowest takeover took {slowest:.2f} s"


def test_a_leader_that_ends_cleanly_is_followed_at_once(
    leading: Supervisors, three: list[LocalMaster]
) -> None:
    first = leading.start(*LONG)
    leading.next_start(0)
    leading.start(*LONG)
    until_queued(three, 1)
    ended = moment()
    first.send_signal(signal.SIGTERM)
    assert leading.next_start(1).at - ended < 20  # not after the TTL of 60 s
    assert first.wait(30) == 128 + signal.SIGTERM
    assert leading.overlaps() == 0


@pytest.mark.parametrize("command", ["lead", "with_lock"])
def test_a_program_dies_with_its_supervisor_and_what_it_has_started_lives_on(
    leading: Supervisors, three: list[LocalMaster], command: str
) -> None:
    shell = ["sh", "-c", 'trap "" TERM; "$@" & wait', "sh", *leading.program()]
    supervisor = leading.start("--ttl", "60", program=shell, command=command)
    grandchild = leading.next_start(0)
    [program] = children(supervisor.pid)
    supervisor.kill()
    until(lambda: not is_alive(program), "the end of the program", seconds=5)
    assert len(values(three, "scheduler")) >= 2, "the lock ends later"
    assert is_alive(grandchild.pid)


def test_the_program_of_a_leader_that_was_stopped_ends_when_the_leader_goes_on(
    leading: Supervisors, three: list[LocalMaster]
) -> None:
    """While the leader is stopped, two programs run: nothing but their numbers tells them apart."""
    for _ in range(2):
        leading.start(*SHORT)
    first = leading.next_start(0)
    until_queued(three, 1)
    leader = leading.leader()
    with stalls() as late:
        stopped = moment()
        leader.send_signal(signal.SIGSTOP)
        second = leading.next_start(1)
        assert second.at - stopped - late() <= TAKEOVER
    assert is_alive(first.pid)
    leader.send_signal(signal.SIGCONT)
    until(lambda: not is_alive(first.pid), "the end of the first program")
    os.kill(second.pid, signal.SIGKILL)  # its supervisor ends, and the first one leads again
    assert leading.next_start(2).supervisor == first.supervisor


@pytest.mark.parametrize("outages", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_masters_that_come_and_go_never_admit_two(
    leading: Supervisors, three: list[LocalMaster], outages: int
) -> None:
    for _ in range(2):
        leading.start(*SHORT)
    leading.next_start(0)
    for _ in range(outages):
        with away(three[:2]):
            time.sleep(0.4)
        before = leading.starts()
        with away(three[:2]):  # a long outage ends the program
            until(partial(has_ended, before[-1].pid), "the end of the program")
        leading.next_start(len(before))
    until(lambda: is_alive(leading.starts()[-1].pid), "a leader")
    assert leading.overlaps() == 0
    assert all(process.poll() is None for process in leading.processes)


def has_ended(pid: int) -> bool:
    return not is_alive(pid)


@contextmanager
def away(masters: list[LocalMaster]) -> Iterator[None]:
    """Pause the masters during the block."""
    for master in masters:
        master.pause()
    try:
        yield
    finally:
        for master in masters:
            master.resume()


def test_a_candidate_starts_before_its_masters(
    leading: Supervisors, three: list[LocalMaster]
) -> None:
    with away(three):
        supervisor = leading.start(*LONG)
        until(lambda: sockets(supervisor.pid) >= len(three), "it connects")
        time.sleep(1.2 * CONNECT_TIMEOUT)
        assert supervisor.poll() is None
    leading.next_start(0)


def test_a_program_that_ends_ends_the_supervisor(leading: Supervisors) -> None:
    supervisor = leading.start(*LONG, program=["sh", "-c", "sleep 60 & exit 5"])
    assert supervisor.wait(60) == 5


def test_a_signal_is_forwarded(leading: Supervisors) -> None:
    code = f"trap 'exit 9' HUP; {subprocess.list2cmdline(leading.program())} & wait"
    # Signals that are ignored are not forwarded, and this run may be under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    supervisor = leading.start(*LONG, program=["sh", "-c", code])
    signal.signal(signal.SIGHUP, before)
    leading.next_start(0)
    supervisor.send_signal(signal.SIGHUP)
    assert supervisor.wait(60) in (9, 128 + signal.SIGHUP)
