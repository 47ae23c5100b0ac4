"""`manage.py with_lock` and `lead`, which run a program: locks, exit statuses and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from pytest_django import Settings

from redlock_django import LockLost, lock, locks
from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.leader import Leadership, Term
from redlock_django.management import child_process
from redlock_django.management.child_process import ChildProcess
from tests.app.conftest import DATABASE, MEMORY, memory_backend
from tests.inspecting import free, look
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


MANAGE = Path(__file__).parents[2] / "manage.py"


@pytest.fixture
def memory(settings: Settings) -> MemoryBackend:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    return memory_backend()


@pytest.fixture(params=["memory", "database"])
def store(request: pytest.FixtureRequest, settings: Settings) -> None:
    """A store in memory, or SQLite."""
    if request.param == "memory":
        request.getfixturevalue("memory")
    else:
        request.getfixturevalue("database_access")
        settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE_TIMEOUT": 10}}


def with_lock(
    *arguments: str, err: StringIO | None = None, command: str = "with_lock"
) -> tuple[int, str]:
    """Run the command in this process; return its exit status and stderr."""
    err = err or StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        call_command(command, *arguments, stderr=err)
    except CommandError as error:
        return error.returncode, err.getvalue() + str(error)
    except SystemExit as end:
        return int(end.code or 0), err.getvalue()
    finally:
        assert signal.getsignal(signal.SIGTERM) is before
    return 0, err.getvalue()


@pytest.fixture
def after_acquiring(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """Return a function whose argument is called with each lease that is acquired from then on."""

    def set_up(act: Callable[[Any], object]) -> None:
        backend = locks["default"].backend
        acquire = backend.acquire

        def acquire_and_act(*arguments: Any) -> Any:
            lease = acquire(*arguments)
            act(lease)
            return lease

        monkeypatch.setattr(backend, "acquire", acquire_and_act)

    return set_up


BOTH = pytest.mark.parametrize("by", ["with_lock", "lead"])


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -TERM $$"], 128 + 15),
        (["sh", "-c", "kill -KILL $$"], 128 + 9),
        (["/nowhere/to/be/found"], 127),
        ([""], 127),
        ([str(MANAGE.parent)], 126),
    ],
)
@BOTH
def test_exit_status_of_the_command(by: str, command: list[str], status: int) -> None:
    assert with_lock("nightly", "--", *command, command=by)[0] == status
    with lock("nightly"):
        pass  # The lock has been released.


@pytest.mark.usefixtures("memory")
def test_a_management_command_needs_python_and_manage_py() -> None:
    status, said = with_lock("nightly", "--", "clearsessions")
    assert status == 127
    assert "write: python manage.py clearsessions" in said
    assert "manage.py" not in with_lock("nightly", "--", "no-such-command")[1]


@pytest.mark.usefixtures("store")
def test_arguments_after_two_dashes_are_those_of_the_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert with_lock("nightly", "--wait", "1", "--", "echo", "--wait", "--", "-v")[0] == 0
    assert capfd.readouterr().out == "--wait -- -v\n"


@pytest.mark.usefixtures("store")
def test_a_held_lock_refuses_skips_or_waits(capfd: pytest.CaptureFixture[str]) -> None:
    backend = locks["default"].backend
    lease = backend.acquire(("nightly",), 10, 0, "{}")
    status, said = with_lock("nightly", "--", "echo", "ran")
    assert (status, "nightly" in said) == (75, True)
    assert with_lock("nightly", "--skip", "--", "echo", "ran") == (0, "")
    assert capfd.readouterr().out == ""

    release = threading.Timer(0.3, backend.release, (lease,))
    release.start()
    assert with_lock("nightly", "--wait", "10", "--", "echo", "ran")[0] == 0
    assert capfd.readouterr().out == "ran\n"
    release.join(60)


@pytest.mark.usefixtures("store")
@BOTH
def test_a_signal_while_waiting_leaves_no_lock(by: str, capfd: pytest.CaptureFixture[str]) -> None:
    backend = locks["default"].backend
    lease = backend.acquire(("nightly",), 60, 0, "{}")

    def end_once_it_waits() -> None:
        until(lambda: look(backend, ["nightly"]).locks[0].waiters, "it waits")
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end_once_it_waits)
    ending.start()
    wait = ["--wait", "60"] if by == "with_lock" else []
    ended = with_lock("nightly", *wait, "--", "echo", "ran", command=by)
    ending.join()
    assert ended == (128 + signal.SIGTERM, "")
    assert capfd.readouterr().out == ""
    until(lambda: not look(backend, ["nightly"]).locks[0].waiters, "it has left the queue")
    backend.release(lease)
    with lock("nightly"):
        pass


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("by", "arguments", "problem"),
    [
        ("with_lock", ["a b"], "contains a space"),
        ("with_lock", ["nightly", "--ttl", "1000"], "MAX_TTL"),
        ("with_lock", ["nightly", "--using", "other"], "no alias 'other'"),
        ("with_lock", ["nightly", "--wait", "1e10"], "wait must be at most 604800 s (7 days), got"),
        ("with_lock", ["nightly", "--min-hold", "1e10"], "min_hold must be at most"),
        ("with_lock", ["nightly", "--limit", "0"], "limit must be a whole number"),
        ("lead", ["a b"], "contains a space"),
        ("lead", ["nightly", "--ttl", "1000"], "MAX_TTL"),
        ("lead", ["nightly", "--using", "other"], "no alias 'other'"),
    ],
)
def test_bad_arguments_are_refused(by: str, arguments: list[str], problem: str) -> None:
    status, said = with_lock(*arguments, "--", "true", command=by)
    assert status == 2
    assert problem in said


def test_without_a_quorum_the_status_is_3() -> None:
    unreachable = {"default": {"MASTERS": ["redis://127.0.0.1:9/0"], "CONNECT_TIMEOUT": 0.1}}
    with override_settings(REDLOCK=unreachable):
        assert with_lock("nightly", "--", "true")[0] == 3


def test_a_database_that_does_not_answer(
    database_access: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseSettings, "sqlite_file", "/nowhere/site.sqlite3.locks")
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}
    status, said = with_lock("nightly", "--", "true")
    assert status == 3
    assert "unable to open database file" in said


def exits_once_exists(file: Path, status: int) -> list[str]:
    """Return a command that exits with this status once a file exists, else with 1 after a minute.

    It creates the file "ready" beside it first.
    """
    look = f"for n in $(seq 1200); do [ -e {file} ] && exit {status}; sleep 0.05; done; exit 1"
    return ["sh", "-c", f"touch {file.with_name('ready')}; {look}"]


@pytest.mark.slow
def test_the_lock_is_renewed_while_the_command_runs(memory: MemoryBackend, tmp_path: Path) -> None:
    renewed = tmp_path / "renewed"
    extend = memory.extend

    def noted(lease: Any, ttl: float) -> Any:
        if ttl == 4:  # each other one is a question whether the lock is still held
            renewed.touch()
        return extend(lease, ttl)

    memory.extend = noted  # type: ignore[method-assign]
    command = exits_once_exists(renewed, 0)
    assert with_lock("nightly", "--ttl", "4", "--", *command) == (0, "")


@pytest.fixture
def lost_once_ready(memory: MemoryBackend, tmp_path: Path) -> Iterator[None]:
    """Make the lock be lost when the command has created the file "ready"."""

    def lose() -> None:
        until((tmp_path / "ready").exists, "the command runs")
        now = memory.now
        memory.now = lambda: now() + 3600

    thread = threading.Thread(target=lose)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("lost_once_ready")
def test_a_lost_lock_ends_the_command_and_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "open")
    reader = os.open(tmp_path / "open", os.O_RDONLY | os.O_NONBLOCK)

    def have_ended() -> bool:
        try:
            return os.read(reader, 1) == b""
        except BlockingIOError:
            return False

    try:
        # The child keeps the pipe open for as long as it lives.
        command = f"cd {tmp_path}; exec 3> open; (sleep 60; true) & touch ready; wait"
        status, said = with_lock("nightly", "--", "sh", "-c", command)
        assert status == 74
        assert "nightly: the lock was lost" in said
        assert "the command was terminated" in said
        until(have_ended, "the end of the child", seconds=30)
    finally:
        os.close(reader)


@pytest.mark.usefixtures("lost_once_ready")
@pytest.mark.parametrize("command", [["with_lock"], ["lead", "--once"]])
def test_a_command_that_ignores_sigterm_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.02)
    ready = tmp_path / "ready"
    stubborn = (
        "import os, pathlib, signal, time; signal.signal(15, signal.SIG_IGN);"
        f"new = pathlib.Path('{ready}.new'); new.write_text(str(os.getpid()));"
        f"new.rename('{ready}'); time.sleep(60)"
    )
    program = ["--", sys.executable, "-c", stubborn]
    status, said = with_lock("nightly", *command[1:], *program, command=command[0])
    assert (status, said.endswith("the command was terminated")) == (74, True)
    assert not Path(f"/proc/{ready.read_text()}").exists()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", [["with_lock"], ["lead", "--once"]])
def test_a_lock_that_an_operator_releases_ends_the_command(
    after_acquiring: Callable[..., None], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("redlock_django.management.child_process._VERIFY_EVERY", 0.1)
    backend = locks["default"].backend

    def release(lease: Any) -> None:
        with backend.inspect() as inspection:
            (held,) = inspection.holdings(["nightly"])
            inspection.release("nightly", [held.leading[0].value])

    after_acquiring(release)
    with pytest.raises(CommandError, match="the command was terminated") as ended:
        call_command(*command, "nightly", "--ttl", "60", "--", "sleep", "10")
    assert ended.value.returncode == 74


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("options", "exit_status", "reported"), [([], 0, 74), ([], 3, 3), (["--keep-going"], 0, 0)]
)
def test_a_loss_that_the_release_finds_does_not_hide_a_failure(
    after_acquiring: Callable[..., None], options: list[str], exit_status: int, reported: int
) -> None:
    backend = locks["default"].backend
    after_acquiring(lambda lease: free(backend, "nightly", lease.fingerprint))
    status, said = with_lock("nightly", *options, "--", "sh", "-c", f"exit {exit_status}")
    assert status == reported
    assert ("nightly: the lock was lost before its block ended" in said) is (not options)


def test_the_command_goes_on_while_too_few_masters_answer(
    after_acquiring: Callable[..., None], memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlock_django.management.child_process._VERIFY_EVERY", 0.1)
    after_acquiring(lambda lease: memory.refuse(0))
    assert with_lock("nightly", "--ttl", "60", "--", "sh", "-c", "sleep 0.5; exit 4")[0] == 4


@pytest.mark.slow
@pytest.mark.parametrize("command", ["with_lock", "lead"])
def test_a_command_whose_lock_is_not_renewed_is_dead_before_the_lock_ends(
    after_acquiring: Callable[..., None],
    memory: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    end = ChildProcess.end
    granted, ended = [], []

    def refuse(lease: Any) -> None:
        granted.append(lease.until)
        memory.refuse(0)

    def note_end(child: ChildProcess) -> int | None:
        status = end(child)
        ended.append(memory.clock())
        return status

    after_acquiring(refuse)
    monkeypatch.setattr(ChildProcess, "end", note_end)
    once = ["--once"] if command == "lead" else []
    # It notes SIGTERM, and goes on.
    deaf = f"trap 'touch {tmp_path}/asked' TERM; for n in $(seq 1200); do sleep 0.05; done"
    with pytest.raises(CommandError, match="nightly: the lock was not renewed in time; the comm"):
        call_command(command, "nightly", "--ttl", "4", *once, "--", "sh", "-c", deaf)
    assert (tmp_path / "asked").exists()
    assert granted[0] - 2 < ended[0] < granted[0]


def test_an_error_of_the_supervisor_ends_the_command(
    memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        until((tmp_path / "pid").exists, "the command runs")
        raise OSError(5, "an error")

    monkeypatch.setattr(ChildProcess, "wait", lambda child: fail())
    command = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 60"
    with pytest.raises(OSError, match="an error"):
        call_command("with_lock", "nightly", "--", "sh", "-c", command)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    with lock("nightly"):
        pass  # It has been released.


@pytest.mark.usefixtures("memory")
def test_a_command_is_a_child_that_inherits_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os; status = dict(line.split(':\\t', 1) for line in open('/proc/self/status'));"
        "print(os.getppid(), sorted(os.listdir('/proc/self/fd')), status['SigBlk'],"
        "status['SigIgn'], sorted({**os.environ, 'REDLOCK_FENCE': ''}.items()))"
    )
    command = ["python3", "-c", f"exec({code!r})"]
    before = os.listdir("/proc/self/fd")
    assert with_lock("nightly", "--", *command) == (0, "")
    assert os.listdir("/proc/self/fd") == before
    under_lock = capfd.readouterr().out
    subprocess.run(command, env=os.environ, check=True)
    assert under_lock == capfd.readouterr().out


@pytest.mark.parametrize("command", ["with_lock", "lead"])
def test_a_command_has_the_fencing_token_of_its_lock(
    memory: MemoryBackend, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    with lock("nightly") as held:
        before = held.fence
    call_command(command, "nightly", "--", "sh", "-c", "echo $REDLOCK_FENCE")
    with lock("nightly") as held:
        assert before < int(capfd.readouterr().out) < held.fence


def test_a_command_without_a_lock_has_no_fencing_token(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "ON_UNAVAILABLE": "proceed"}}
    backend = memory_backend()
    backend.refuse(0)
    monkeypatch.setenv("REDLOCK_FENCE", "7")  # of the lock around this process
    assert with_lock("nightly", "--", "sh", "-c", "echo ${REDLOCK_FENCE-none}")[0] == 0
    assert capfd.readouterr().out == "none\n"


def test_a_command_is_not_started_after_the_death_of_its_supervisor(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    launcher = Path(child_process.__file__).with_name("launcher.py")
    made = tmp_path / "made"
    launched = [sys.executable, str(launcher), str(dead.pid), "2", "touch", str(made)]
    ended = subprocess.run(launched, check=False)
    assert (ended.returncode, made.exists()) == (-signal.SIGKILL, False)


@pytest.mark.usefixtures("lost_once_ready")
def test_keep_going_continues_without_the_lock(tmp_path: Path) -> None:
    reported = tmp_path / "reported"

    class Noted(StringIO):
        def write(self, text: str) -> int:
            reported.touch()
            return super().write(text)

    command = exits_once_exists(reported, 4)
    status, said = with_lock("nightly", "--keep-going", "--", *command, err=Noted())
    assert status == 4
    assert said.count("the lock was lost") == 1
    assert "continues without it" in said


# A leader.


def test_a_leader_needs_a_command() -> None:
    with pytest.raises(CommandError, match="COMMAND"):
        call_command("lead", "scheduler")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("memory")
def test_a_leader_inside_a_transaction() -> None:
    with transaction.atomic():
        status, said = with_lock("scheduler", "--", "true", command="lead")
    assert status == 2
    assert "inside a transaction" in said


@pytest.mark.usefixtures("lost_once_ready")
def test_a_lost_lead_ends_the_command_and_is_campaigned_for_again(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    # The second time, the file exists.
    again = f"[ -e {ready} ] && exit 4; touch {ready}; sleep 60"
    status, said = with_lock("scheduler", "--", "sh", "-c", again, command="lead")
    assert status == 4
    assert said.count("the command was terminated, and this process waits again") == 1


def test_a_lead_that_is_lost_before_the_command_begins_is_campaigned_for_again(
    memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, begun = Leadership.enter_in, []

    def lose_the_first(campaign: Leadership, stack: ExitStack) -> Term:
        term = enter(campaign, stack)
        begun.append(term.number)
        if len(begun) == 1:
            raise LockLost("scheduler: lost")
        return term

    monkeypatch.setattr(Leadership, "enter_in", lose_the_first)
    status, said = with_lock("scheduler", "--", "sh", "-c", "exit 4", command="lead")
    assert (status, len(begun)) == (4, 2)
    assert "scheduler: lost; " in said


def test_a_second_signal_does_not_interrupt_the_cleanup_after_the_first() -> None:
    child = ChildProcess(["true"])
    cleaned: list[str] = []

    def clean() -> None:
        signal.raise_signal(signal.SIGTERM)
        cleaned.append("the lock")

    def end() -> None:
        with child.forwarding_signals(), ExitStack() as stack:
            stack.callback(clean)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        end()
    assert ended.value.code == 128 + signal.SIGTERM
    assert cleaned == ["the lock"]
