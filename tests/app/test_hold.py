"""@hold on plain functions, tasks and management commands."""

from __future__ import annotations

import asyncio
import inspect
import io
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, assert_type

import celery
import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.management import BaseCommand, CommandError, call_command
from django.test import TestCase
from pytest_django import Settings

from redlock_django import hold, lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import (
    AlreadyHeld,
    BadResource,
    InvalidRedlock,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.management.single_run import SingleRunMixin
from redlock_django.testing import held_elsewhere, lose_lock
from tests.app.conftest import without_quorum
from tests.inspecting import is_free

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def nightly_held_elsewhere(memory: None) -> Iterator[None]:
    with held_elsewhere("nightly"):
        yield


# Functions.


def test_the_lock_is_held_while_the_function_runs() -> None:
    @hold("report:<customer>")
    def report(customer: str, *, year: int = 2026) -> str:
        """Make the report."""
        assert not is_free("report:acme")
        return f"{customer} {year}"

    assert report("acme", year=2027) == "acme 2027"
    assert is_free("report:acme")
    assert report.__doc__ == "Make the report."
    assert list(inspect.signature(report).parameters) == ["customer", "year"]


async def test_a_coroutine_function_stays_a_coroutine_function() -> None:
    @hold("report:<customer>")
    async def report(customer: str) -> str:
        assert not is_free("report:acme")
        await asyncio.sleep(0)
        return customer

    assert iscoroutinefunction(report)
    assert await report(customer="acme") == "acme"
    assert is_free("report:acme")


ran: list[int] = []


@hold("nightly", on_conflict="skip")
def may_be_skipped(number: int) -> str:
    ran.append(number)
    return str(number)


@hold("nightly", on_conflict="skip")
async def may_be_askipped(number: int) -> str:
    ran.append(number)
    return str(number)


@hold("nightly")
def is_never_skipped(number: int) -> str:
    ran.append(number)
    return str(number)


def test_a_conflict_is_raised_or_skipped() -> None:
    """mypy checks these types; they were `str` although the functions may return None."""
    ran.clear()
    assert_type(may_be_skipped(1), str | None)
    assert_type(is_never_skipped(2), str)
    assert ran == [1, 2]
    with held_elsewhere("nightly"):
        assert may_be_skipped(3) is None
        assert assert_type(asyncio.run(may_be_askipped(3)), str | None) is None
        with pytest.raises(ResourceLocked):
            is_never_skipped(3)
    assert ran == [1, 2]


@pytest.mark.usefixtures("nightly_held_elsewhere")
def test_skip_is_only_about_the_functions_own_lock() -> None:
    @hold("another", on_conflict="skip")
    def function() -> None:
        lock("nightly").acquire()

    with pytest.raises(ResourceLocked):
        function()
    assert is_free("another")


def test_skip_does_not_hide_that_there_is_no_quorum() -> None:
    with without_quorum(), pytest.raises(QuorumUnreachable):
        may_be_skipped(1)


def test_values_are_written_as_in_views() -> None:
    seen: list[str] = []

    @hold("order:<int:pk>", "user:<user>")
    def function(pk: object, user: str) -> None:
        seen.extend(name for name in ("order:7", "user:a%3Ab") if not is_free(name))

    function("07", "a:b")
    assert seen == ["order:7", "user:a%3Ab"]
    with pytest.raises(BadResource):
        function("seven", "a")
    with pytest.raises(BadResource):
        function(7, "")


def test_hold_locks_methods_by_default_arguments() -> None:
    class Importer:
        @hold("import:<source>")
        def run(self, source: str = "erp") -> bool:
            return not is_free("import:erp")

    assert Importer().run()
    assert is_free("import:erp")


def test_acquiring_a_lock_twice_raises_or_nests() -> None:
    @hold("nightly")
    def plain() -> str:
        return "ran"

    @hold("nightly", reentrant=True)
    def nesting() -> str:
        return "ran"

    with lock("nightly"):
        with pytest.raises(AlreadyHeld, match="reentrant=True"):
            plain()
        assert nesting() == "ran"
        assert not is_free("nightly")


async def test_a_cancelled_wait_waits_for_no_thread(nightly_held_elsewhere: None) -> None:
    """Only a lock that is held must outlast the sync code that runs under it."""
    loop, started, enough = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def occupy() -> None:
        loop.call_soon_threadsafe(started.set)
        enough.wait(60)

    @hold("nightly", wait=60)
    async def rebuild() -> None:
        raise AssertionError("the lock was not held")

    busy = asyncio.create_task(sync_to_async(occupy)())
    await started.wait()
    waiting = asyncio.create_task(rebuild())
    await asyncio.sleep(0)
    waiting.cancel()
    try:
        await asyncio.wait([waiting], timeout=20)
        assert waiting.cancelled()
    finally:
        enough.set()
        await busy


class UsersTestCase(TestCase):
    def test_the_block_around_each_test_does_not_count(self) -> None:
        assert hold("nightly")(lambda: "ran")() == "ran"


def test_generators_are_refused() -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> Any:
        yield 1

    for function in (rows, arows):
        with pytest.raises(InvalidRedlock, match="after the lock is released"):
            hold("nightly")(function)


# Tasks.


def test_a_celery_task_is_held() -> None:
    app = celery.Celery("shop", broker="memory://", set_as_current=False)

    @app.task(bind=True)
    @hold("report:<customer>", on_conflict="skip")
    def report(self: Any, customer: str) -> str:
        assert not is_free("report:acme")
        return f"{self.name} {customer}"

    assert report.apply(args=["acme"]).get() == f"{__name__}.report acme"
    assert is_free("report:acme")
    with pytest.raises(TypeError):
        report.apply_async(args=[])  # Celery still knows the signature


@pytest.mark.usefixtures("nightly_held_elsewhere")
def test_celery_tries_a_refused_task_again() -> None:
    app = celery.Celery("shop", broker="memory://", set_as_current=False)

    @app.task(autoretry_for=(ResourceLocked,), max_retries=2, default_retry_delay=0)
    @hold("nightly")
    def nightly() -> None:
        raise AssertionError

    result = nightly.apply()
    assert isinstance(result.result, ResourceLocked)
    assert result.state == "FAILURE"


def test_celery_in_the_wrong_order_is_an_error() -> None:
    app = celery.Celery("shop", broker="memory://", set_as_current=False)

    with pytest.raises(InvalidRedlock, match=r"@app\.task or @shared_task above it"):

        @hold("nightly")
        @app.task
        def wrong() -> None: ...

    with pytest.raises(InvalidRedlock, match=r"@shared_task above it"):

        @hold("nightly")
        @celery.shared_task
        def wrong_too() -> None: ...


@hold("report:<customer>")
def django_report(customer: str) -> str:
    return f"{customer} {is_free('report:acme')}"


def test_a_django_task_is_held(settings: Settings) -> None:
    tasks = pytest.importorskip("django.tasks", reason="Django 6.0 and later")
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    task = tasks.task(django_report)
    assert task.enqueue("acme").return_value == "acme False"
    with pytest.raises(InvalidRedlock, match="@task"):
        hold("nightly")(task)


# Jobs of each kind: functions, management commands and programs.


class Job(NamedTuple):
    """A kind of job under the lock "nightly"."""

    run: Callable[..., object]
    error: type[Exception]
    status: int | None = None

    def is_refused(self, says: str, **options: Any) -> bool:
        with pytest.raises(self.error, match=f"nightly: {says}") as refused:
            self.run(**options)
        return getattr(refused.value, "returncode", None) == self.status


def run_function(**options: Any) -> None:
    hold("nightly", **options)(is_free)("nightly")


def run_command(**options: Any) -> None:
    own: Any = type("Own", (Nightly,), {f"lock_{name}": value for name, value in options.items()})
    call_command(own(), stdout=io.StringIO())


def run_program(**options: Any) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    call_command("with_lock", *flags, "nightly", "--", "true")


JOBS = pytest.mark.parametrize(
    "job",
    [
        Job(run_function, ResourceLocked),
        Job(run_command, CommandError, 75),
        Job(run_program, CommandError, 75),
    ],
    ids=["function", "command", "program"],
)


@JOBS
def test_a_job_is_run_once_within_its_min_hold(job: Job) -> None:
    job.run(min_hold=5)
    assert job.is_refused("held by", min_hold=5)
    MemoryBackend.advance(5.1)
    job.run(min_hold=5)


@JOBS
def test_a_job_is_run_as_often_at_once_as_its_limit(job: Job) -> None:
    with held_elsewhere("nightly"):
        job.run(limit=2)
    with held_elsewhere("nightly", limit=2):
        assert job.is_refused("its 2 slots are held", limit=2)
    assert is_free("nightly")


class Nightly(SingleRunMixin, BaseCommand):
    lock_key = "nightly"

    def handle(self, *args: Any, **options: Any) -> str:
        self.held.ensure_held()
        return "free" if is_free("nightly") else "held"


def test_a_command_runs_under_its_lock() -> None:
    out = io.StringIO()
    call_command(Nightly(), stdout=out)
    assert out.getvalue() == "held\n"
    assert is_free("nightly")


@pytest.mark.usefixtures("nightly_held_elsewhere")
def test_a_second_command_may_end_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nightly, "on_conflict", "skip")
    out = io.StringIO()
    call_command(Nightly(), stdout=out)
    assert out.getvalue() == ""


@pytest.mark.parametrize("asks", [True, False], ids=["asked", "at the end"])
def test_a_command_whose_lock_is_lost_ends_with_74(asks: bool) -> None:
    class Losing(Nightly):
        def handle(self, *args: Any, **options: Any) -> str:
            lose_lock("nightly")
            if asks:
                self.held.ensure_held()
            return "done"

    with pytest.raises(CommandError, match="nightly") as caught:
        call_command(Losing(), stdout=io.StringIO())
    assert caught.value.returncode == 74


def test_the_key_of_a_command_is_its_name_or_its_own() -> None:
    class Command(SingleRunMixin):
        pass

    Command.__module__ = "shop.management.commands.nightly"
    assert Command().get_lock_key() == "command:nightly"

    class ForTenant(Nightly):
        def get_lock_key(self, **options: Any) -> str:
            return f"nightly {options['verbosity']}"

    with pytest.raises(CommandError, match="resource") as caught:
        call_command(ForTenant())
    assert caught.value.returncode == 2
