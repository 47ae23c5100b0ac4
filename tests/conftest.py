"""Fixtures that start real servers for the whole suite: masters, PostgreSQL and MariaDB."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from itertools import count
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest
from django.db import connections
from django.dispatch import Signal
from hypothesis import HealthCheck, settings

from redlock_django import signals
from redlock_django.backends.database.settings import _new_temporary_file
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.conf.settings import check_installed, template_middleware
from redlock_django.idempotency import recorder
from redlock_django.idempotency import settings as idempotency_settings
from redlock_django.locking import caller, leader, reports
from redlock_django.locking.lock import Lock
from redlock_django.locking.renewal import renewal_service
from redlock_django.locking.reports import counters
from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.web.options import _waiting
from redlock_django.web.rules import rules
from testproject.shop.serving import serving
from tests.looking import looking_at
from tests.mariadb import local_mariadb
from tests.postgres import local_postgres
from tests.restricted import restrict
from tests.zookeeper import ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from pytest_django import Settings

T = TypeVar("T")

# The tests start about a hundred processes for sites and commands. Without a bytecode cache, each
# of them compiles all of Django, and takes four times as long to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting the tests makes a million objects that stay until the end. Each search for reference
# cycles among them takes as long as dozens of tests.
gc.disable()

# A background job of a shell ignores SIGINT, and so do the processes that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no limit of time: neither randomness nor load may decide.
# Every night more and random ones run, with --hypothesis-profile night.
_no_limit = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("day", _no_limit, derandomize=True, max_examples=50)
settings.register_profile("night", _no_limit, derandomize=False, max_examples=5_000)
settings.load_profile("day")

# redis-py reads its own version from disk for every new connection.
with contextlib.suppress(ImportError):  # older releases do not
    from redis import driver_info, utils

    for module in (utils, driver_info):  # the module that looks it up differs between releases
        vars(module)["get_lib_version"] = cache(utils.get_lib_version)


if os.environ.get("REDLOCK_LEAST_ACL"):
    restrict()


# A browser aborts a page load when another test adds or removes a network interface.
_NETWORK = ("tests/browser/", "tests/live/test_partitions", "tests/live/campaign/")

# These tests share a PostgreSQL.
_DATABASES = (
    "tests/live/test_transaction_locks",
    "tests/scenarios/",
    "tests/contrib/test_edit_locks_at_once",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that decides which tests share a worker.

    The tests of one file share a worker, because they share fixtures. All tests of MariaDB share a
    worker, because it starts once.
    """
    from xdist.scheduler import LoadFileScheduling

    class BySite(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if "mysql" in nodeid or "mariadb" in nodeid:  # the server takes seconds to start
                return "mysql"
            if "zookeeper" in nodeid:
                return "zookeeper"  # one server suffices
            if file.startswith(_DATABASES):
                return "databases"
            if file.startswith(_NETWORK):
                return "network"
            return file

    return BySite(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run what takes over a second")
    parser.addoption("--order", type=int, help="the number of an earlier run whose order to repeat")


def pytest_configure(config: pytest.Config) -> None:
    """Run slow tests also where markers, files or tests are named; choose an order of the files."""
    if hasattr(config, "workerinput"):  # a worker is always given files
        config.option.slow = config.workerinput["slow"]
        config.option.order = config.workerinput["order"]
        return
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.option.slow = config.option.slow or named or bool(config.option.markexpr)
    if config.option.order is None:
        config.option.order = SystemRandom().randrange(10_000)


def pytest_report_header(config: pytest.Config) -> str:
    """Print how to repeat the order of the files."""
    return f"order of files: {config.option.order} (repeat it with --order)"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass on to a worker whether it runs slow tests, and the order."""
    node.workerinput["slow"] = node.config.option.slow
    node.workerinput["order"] = node.config.option.order


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests and, unless they are asked for, slow ones; order the others."""
    left_out = {"nightly"} if "nightly" not in config.option.markexpr else set()
    left_out |= set() if config.option.slow else {"slow"}
    now: list[pytest.Item] = []
    later: list[pytest.Item] = []
    for item in items:
        (later if any(map(item.get_closest_marker, left_out)) else now).append(item)
    config.hook.pytest_deselected(items=later)
    items[:] = now
    files = sorted({item.nodeid.partition("::")[0] for item in items})
    Random(config.option.order).shuffle(files)
    place = _places(files)
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


# What waits for servers most of the time, the longest first: a long one at the end leaves workers
# idle.
_WAITING = (
    "tests/live/test_idempotency",
    "tests/browser/",
    "tests/contract/test_zookeeper",
    "tests/live/test_leading",
    "tests/live/test_trust",
    "tests/live/test_web_sites",
    "tests/wire/test_variants",
    "tests/contract/",
    "tests/live/",
    "tests/wire/",
    "tests/testing/",
    "tests/scenarios/",
)


def _places(files: list[str]) -> dict[str, float]:
    """Return the place of each file, from 0 to 1: some workers compute while others wait.

    So the files that wait, those of the algorithm, which take most of the processor time, and the
    rest are spread evenly. The many small ones of the rest, which are in directories, come last.
    Files of one rank keep their order: it is another one in each run.
    """
    places: dict[str, float] = {}
    waiting = [file for file in files if file.startswith(_WAITING)]
    engine = [file for file in files if file.startswith("tests/engine/")]
    rest = [file for file in files if file not in {*waiting, *engine}]
    for group in (waiting, engine, rest):
        ordered = sorted(group, key=lambda file: (_rank(file), file.count("/")))
        places |= {file: number / len(ordered) for number, file in enumerate(ordered)}
    return places


def _rank(file: str) -> int:
    return next((n for n, start in enumerate(_WAITING) if file.startswith(start)), len(_WAITING))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import a test file in one worker at a time, which compiles it for the others."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note how long a test takes: on a busy machine, its own processor time only."""
    began, used = time.monotonic(), time.process_time()
    try:
        return (yield)
    finally:
        is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
        took = time.process_time() - used if is_busy else time.monotonic() - began
        item.user_properties.append(("seconds", took))


def unmarked(reports: Iterable[pytest.TestReport]) -> str:
    """Return a line about tests that took over a second without the mark; "" if there are none."""
    slow = sorted(
        (seconds, report.nodeid)
        for report in reports
        for name, seconds in report.user_properties
        if name == "seconds" and isinstance(seconds, float) and seconds > 1
        if not {"slow", "nightly"} & report.keywords.keys()
    )
    if not slow:
        return ""
    tests = "1 test" if len(slow) == 1 else f"{len(slow)} tests, the slowest"
    seconds, name = slow[-1]
    return f"Slower than a second and not marked slow: {tests} {name} ({seconds:.1f} s)"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what was left out, with a line for each reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, many in reasons.most_common():
        tests = "1 test" if many == 1 else f"{many} tests"
        terminalreporter.write_line(f"Left out: {tests}: {reason}")
    if line := unmarked(terminalreporter.stats.get("passed", ())):
        terminalreporter.write_line(line)
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(pytest_report_header(config))  # "-q" leaves out the header
    if not config.option.slow:
        terminalreporter.write_line("Left out: what takes over a second; --slow runs it")


def pytest_collection_finish() -> None:
    """Search for reference cycles again, but not among the objects of the collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Wait until no thread of an earlier test connects: it would mark a master that was emptied.

    A client that is closed while it connects does not wait for its connecting threads to end. One
    that is not closed connects for ever, and delays every later test.
    """
    deadline = time.monotonic() + 30
    # Do not join them: a thread that has not started yet is listed but cannot be joined.
    while any(thread.name.startswith("redlock-dial-") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "An earlier test left a client open that connects."
        time.sleep(0.002)


_SIGNALS = [signal for signal in vars(signals).values() if isinstance(signal, Signal)]


@pytest.fixture(autouse=True)
def _no_state_of_earlier_tests() -> Iterator[None]:
    """Reset every register of the process after each test, so that tests pass in any order.

    Settings that a test changed are those of the site again by then: this fixture is set up first.
    """
    receivers = {sender: list(sender.receivers) for sender in _SIGNALS}
    yield
    locks.close()
    # Otherwise the renewal thread reports a lease that a test has left as lost in a later test.
    for reference in renewal_service._schedule._leases.copy():
        if (held_lease := reference()) is not None:
            held_lease.mark_released()
    MemoryBackend.passed = 0.0
    for sender, before in receivers.items():
        sender.receivers[:] = before
        sender.sender_receivers_cache.clear()
    rules.remove()
    counters._reset()
    _waiting._reset()
    recorder._recorded = count(1)  # every twentieth request deletes rows
    reports.observers.clear()
    leader._terms.clear()
    caller._held_leases.clear()
    caller._acquired_here.set({})
    check_installed.cache_clear()
    template_middleware.cache_clear()
    idempotency_settings._read.clear()
    if "__del__" in vars(Lock):  # as `report_unused_locks` sets it
        del Lock.__del__  # type: ignore[attr-defined]


@pytest.fixture
def hear() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that returns a list of what is sent with some signals from then on."""

    def listen(*signals: Signal) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []

        def note(**about: Any) -> None:
            heard.append(about)

        for one in signals:
            one.connect(note, weak=False)  # until the end of the test
        return heard

    return listen


@pytest.fixture
def outages() -> list[tuple[str, str, str]]:
    """Record the signals about masters: "down" or "up", the master, and the reason."""
    heard: list[tuple[str, str, str]] = []

    def note_down(master: str, reason: str, **_: Any) -> None:
        heard.append(("down", master, reason))

    def note_up(master: str, reason: str, **_: Any) -> None:
        heard.append(("up", master, reason))

    signals.master_down.connect(note_down, weak=False)
    signals.master_up.connect(note_up, weak=False)
    return heard


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Keep content types and permissions when the tables are emptied after a test, and hash fast.

    No test changes them. Deleting them and creating them again takes more time than most tests, and
    so does the command "flush", which parses its arguments and searches every app for a package.
    """
    from django.conf import settings
    from django.core.management.color import no_style
    from django.test import TransactionTestCase

    kept = {"django_content_type", "auth_permission"}

    def empty_tables(case: Any) -> None:
        for alias in case._databases_names(include_mirrors=False):
            connection: Any = connections[alias]
            tables = connection.introspection.django_table_names(
                only_existing=True, include_views=False
            )
            statements = connection.ops.sql_flush(no_style(), {*tables} - kept)
            connection.ops.execute_sql_flush(statements)

    with pytest.MonkeyPatch.context() as patch:
        # The fastest: each password of the default hasher takes longer than dozens of tests.
        hasher = "django.contrib.auth.hashers.MD5PasswordHasher"
        patch.setattr(settings, "PASSWORD_HASHERS", [hasher])
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_tables)
        yield


@pytest.fixture(scope="session")
def five_masters() -> Iterator[list[LocalMaster]]:
    """Start five real servers once. Tests use `masters`, which resets their state."""
    with local_masters(5) as started:
        yield started


@pytest.fixture
def masters(five_masters: list[LocalMaster]) -> list[LocalMaster]:
    """Return the five masters: running, not paused, empty and with their initial settings."""
    dead = [master for master in five_masters if not master.alive]
    for master in dead:
        master.spawn()
    for master in five_masters:
        if master.alive:
            master.resume()
    for master in dead:
        master.wait_ready()
    for master in five_masters:
        with looking_at(master).pipeline(transaction=False) as pipe:
            pipe.execute_command("CLIENT", "UNPAUSE")
            pipe.execute_command("REPLICAOF", "NO", "ONE")
            pipe.config_set("maxmemory", "0", "maxmemory-policy", "noeviction")
            pipe.script_flush()
            pipe.flushall()
            pipe.execute()
    return five_masters


@pytest.fixture
def database_access(django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow connections to databases; those of locks are closed at the end.

    Locks beside a database in memory are in a file of this process: each test gets a new one. The
    default database is in memory even if no test of the run has the mark that makes it so.
    """
    default = connections["default"]
    if not default.is_in_memory_db():  # type: ignore[attr-defined]
        monkeypatch.setitem(default.settings_dict, "NAME", ":memory:")
    with django_db_blocker.unblock():
        _new_temporary_file.cache_clear()
        yield
        locks.close()
        _new_temporary_file.cache_clear()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open no transactions for requests: ATOMIC_REQUESTS is False."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)


@contextlib.contextmanager
def installed(server: AbstractContextManager[T]) -> Iterator[T]:
    """Run a server in the block; skip the test if its programs are not installed."""
    with ExitStack() as running:
        try:
            entered = running.enter_context(server)
        except FileNotFoundError as missing:
            pytest.skip(str(missing))
        yield entered


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    """Start a PostgreSQL cluster and return its entry for DATABASES; skip if not installed."""
    with installed(local_postgres()) as entry:
        yield entry


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """Start a ZooKeeper server; skip if ZooKeeper is not installed."""
    with installed(local_zookeeper()) as (server,):
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[dict[str, Any]]:
    """Start a MariaDB server and return its entry for DATABASES; skip if not installed."""
    pytest.importorskip("pymysql").install_as_MySQLdb()
    with installed(local_mariadb()) as entry:
        yield entry


@pytest.fixture
def address(settings: Settings) -> Iterator[tuple[str, int]]:
    """Serve the site of the test by Django's own server, with a thread for each request."""
    settings.ALLOWED_HOSTS = ["*"]
    with serving() as url:
        parts = urlsplit(url)
        yield str(parts.hostname), parts.port or 0
