"""`manage.py lead NAME -- COMMAND` in this process: arguments, statuses, losses."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command

from redlock_django import LockLost, lock
from redlock_django.locking.leader import Leadership, Term
from redlock_django.management import child_process
from redlock_django.management.child_process import ChildProcess
from redlock_django.testing import lose_lock
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("memory")


def lead(*arguments: str) -> tuple[int, str]:
    """Run the command in this process; return its exit status and stderr."""
    err = StringIO()
    try:
        call_command("lead", *arguments, stderr=err)
    except CommandError as error:
        return error.returncode, err.getvalue() + str(error)
    except SystemExit as end:
        return int(end.code or 0), err.getvalue()
    return 0, err.getvalue()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -KILL $$"], 128 + 9),
        (["/nowhere/to/be/found"], 127),
        (["/"], 126),
    ],
)
def test_exit_status_of_the_command(command: list[str], status: int) -> None:
    assert lead("scheduler", "--", *command)[0] == status
    with lock("scheduler"):
        pass  # It has been released.


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["scheduler", "--ttl", "1000", "--", "true"], "MAX_TTL"),
        (["scheduler", "--using", "other", "--", "true"], "no alias 'other'"),
        (["a b", "--", "true"], "contains a space"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments: list[str], problem: str) -> None:
    status, written = lead(*arguments)
    assert status == 2
    assert problem in written


def test_a_command_is_needed() -> None:
    with pytest.raises(CommandError, match="COMMAND"):
        call_command("lead", "scheduler")


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction() -> None:
    from django.db import transaction

    with transaction.atomic():
        status, written = lead("scheduler", "--", "true")
    assert status == 2
    assert "inside a transaction" in written


def losing(ready: Path) -> threading.Thread:
    def lose() -> None:
        until(ready.exists, "the command runs")
        lose_lock("scheduler")

    thread = threading.Thread(target=lose)
    thread.start()
    return thread


def test_a_lost_lead_ends_the_command_and_is_campaigned_for_again(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    thread = losing(ready)
    # The second time, the file exists.
    status, written = lead(
        "scheduler", "--", "sh", "-c", f"[ -e {ready} ] && exit 4; touch {ready}; sleep 60"
    )
    thread.join()
    assert status == 4
    assert written.count("the command was terminated, and this process waits again") == 1


def test_a_lead_that_is_lost_before_the_command_begins_is_campaigned_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter, begun = Leadership.enter_in, []

    def lose_the_first(campaign: Leadership, stack: ExitStack) -> Term:
        term = enter(campaign, stack)
        begun.append(term.number)
        if len(begun) == 1:
            raise LockLost("scheduler: lost")
        return term

    monkeypatch.setattr(Leadership, "enter_in", lose_the_first)
    status, written = lead("scheduler", "--", "sh", "-c", "exit 4")
    assert (status, len(begun)) == (4, 2)
    assert "scheduler: lost; " in written


def test_once_exits_after_a_loss_and_kills_what_ignores_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.02)
    ready = tmp_path / "ready"
    thread = losing(ready)
    stubborn = (
        "import pathlib, signal, time; signal.signal(15, signal.SIG_IGN);"
        f"pathlib.Path('{ready}').touch(); time.sleep(60)"
    )
    status, written = lead("scheduler", "--once", "--", sys.executable, "-c", stubborn)
    thread.join()
    assert status == 74
    assert written.endswith("the command was terminated")


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
