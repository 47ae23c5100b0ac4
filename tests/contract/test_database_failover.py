"""A standby of PostgreSQL that is promoted without the newest locks."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from redlock_django import lock, resume_lock
from redlock_django.backends.database.dialects import LOCKS, SECOND, SERVERS
from redlock_django.exceptions import ResourceLocked, StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.testing.processes import ProcessGroup
from tests import inspecting
from tests.conftest import installed
from tests.contract.stores import DATABASE, granted
from tests.ports import free_port
from tests.postgres import local_pgbouncer, local_postgres, postgres_owner, postgres_programs
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def ask(port: str, statement: str) -> Any:
    """Return the first value of a statement's result, or None."""
    target = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    with closing(psycopg.connect(target, autocommit=True)) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def answers(port: str) -> bool:
    """Return whether a server answers."""
    try:
        return bool(ask(port, "SELECT 1"))
    except psycopg.OperationalError:
        return False


@contextmanager
def standby_of(primary: str) -> Iterator[str]:
    """Start a standby that streams from the server on a port; yield its own port."""
    with ProcessGroup("redlock-replica-") as processes:
        data, port, programs = processes.directory / "data", str(free_port()), postgres_programs()
        owner = postgres_owner(processes.directory)
        copy = [str(programs / "pg_basebackup"), "-h", "127.0.0.1", "-p", primary, "-U", "postgres"]
        copy += ["-D", str(data), "-R", "-c", "fast", "--no-sync"]
        subprocess.run(copy, check=True, capture_output=True, **owner)
        flags = [f"port={port}", "listen_addresses=127.0.0.1", "fsync=off"]
        flags += ["max_connections=200"]  # as the primary
        flags += [f"unix_socket_directories={processes.directory}"]
        command = [str(programs / "postgres"), "-D", str(data)]
        command += [part for flag in flags for part in ("-c", flag)]
        server = processes.spawn(command, stderr=subprocess.DEVNULL, **owner)
        until(lambda: answers(port), what="the standby answers")
        yield port
        server.send_signal(signal.SIGINT)  # removes its shared memory
        server.wait(60)


class Pair:
    """A primary and its standby: the aliases "primary" and "standby" of DATABASES."""

    def __init__(self, primary: str, standby: str) -> None:
        self.primary, self.standby = primary, standby

    def lose_the_link(self) -> None:
        """Make the standby receive nothing any more, as one that is behind."""
        ask(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        ask(self.standby, "SELECT pg_reload_conf()")
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
        until(lambda: ask(self.standby, receivers) == 0, what="nothing is received")

    def promote(self) -> None:
        """Make the standby a primary."""
        assert ask(self.standby, "SELECT pg_promote()")

    def pass_time(self, seconds: int) -> None:
        """Make the promoted standby trusted so much earlier."""
        ask(self.standby, f"UPDATE {SERVERS} SET ready_at = ready_at - {seconds * SECOND}")
        locks.close()


def streamed(port: str) -> bool:
    """Return whether a standby has the identity of the server that granted the first lock."""
    try:
        return bool(ask(port, f"SELECT count(*) FROM {SERVERS}"))
    except psycopg.errors.UndefinedTable:
        return False


@pytest.fixture(scope="module")
def primary() -> Iterator[dict[str, Any]]:
    """Start the primary of all pairs; the locks that a test leaves on it are deleted."""
    with local_postgres() as entry:
        yield entry


@pytest.fixture
def pair(
    primary: dict[str, Any],
    settings: Settings,
    databases: Callable[[str, dict[str, Any]], None],
    database_access: None,
) -> Iterator[Pair]:
    databases("primary", primary)
    call_command("migrate", "redlock_django", database="primary", verbosity=0)
    ask(primary["PORT"], f"TRUNCATE {LOCKS}, {SERVERS}")
    connections["primary"].close()
    with standby_of(primary["PORT"]) as port:
        databases("standby", {**primary, "PORT": port})
        settings.REDLOCK = {
            alias: {"BACKEND": DATABASE, "DATABASE": name, "MAX_TTL": 60, "TTL": 60}
            for alias, name in (("default", "primary"), ("standby", "standby"))
        }
        with lock("order:0"):  # the identity of the server is stored
            pass
        until(lambda: streamed(port), what="the standby streams")
        yield Pair(primary["PORT"], port)
        locks.close()


def test_a_promoted_standby_is_not_trusted_until_all_locks_have_expired(pair: Pair) -> None:
    pair.lose_the_link()
    held = lock("order:1", renew=False).acquire()  # does not reach the standby
    pair.promote()
    connections.settings["primary"]["PORT"] = pair.standby
    locks.close()
    with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
        lock("order:1").acquire()
    statement = f"SELECT count(*) FROM {LOCKS} WHERE resource = 'order:1'"
    assert ask(pair.standby, statement) == 0
    assert 0 < held.remaining() < (refused.value.retry_after or 0)
    pair.pass_time(59)
    until(granted, what="the promoted standby is trusted")


def test_a_promoted_standby_that_missed_a_taker_has_no_second_one(pair: Pair) -> None:
    with lock("order:1") as held:
        ticket = held.transfer(ttl=60)
    given = f"SELECT count(*) FROM {LOCKS} WHERE holder LIKE '%handed_on%'"
    until(lambda: ask(pair.standby, given) == 1, what="the standby has what was handed on")
    pair.lose_the_link()
    taken = resume_lock(ticket, renew=False).acquire()
    pair.promote()
    connections.settings["primary"]["PORT"] = pair.standby
    locks.close()
    with pytest.raises(StoreUnavailable, match="failed over or restored"):
        resume_lock(ticket).acquire()
    assert taken.remaining() > 0


def test_a_client_of_a_standby_is_granted_nothing_before_and_after_its_promotion(
    pair: Pair,
) -> None:
    backend = locks["standby"].backend
    backend.connect()
    with pytest.raises(StoreUnavailable, match="is a standby"):
        lock("order:1", using="standby").acquire()
    (server,) = inspecting.health(backend)
    assert not server.counted
    assert "is a standby" in server.reason
    pair.lose_the_link()
    held = lock("order:1", renew=False).acquire()
    pair.promote()
    with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
        lock("order:1", using="standby").acquire()
    assert 0 < held.remaining() < (refused.value.retry_after or 0)
    pair.pass_time(59)
    until(lambda: granted("standby"), what="the promoted standby is trusted")


def test_a_connection_that_a_pooler_moves_to_a_promoted_standby_grants_nothing(
    pair: Pair, databases: Callable[[str, dict[str, Any]], None], settings: Settings
) -> None:
    with installed(local_pgbouncer(pair.primary)) as pooler:
        databases("pooled", {**connections.settings["primary"], "PORT": pooler.port})
        one = {"BACKEND": DATABASE, "DATABASE": "pooled", "CONNECTIONS": 1, "TTL": 60}
        settings.REDLOCK = {"default": one, "other": one}
        pair.lose_the_link()
        held = lock("order:1", renew=False).acquire()
        with pytest.raises(ResourceLocked):
            lock("order:1", using="other").acquire()
        pair.promote()
        pooler.move(pair.standby)  # the connection of the client goes on
        port = "SELECT inet_server_port()::text"
        until(lambda: ask(pooler.port, port) == pair.standby, what="PgBouncer has moved")
        with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
            lock("order:1", using="other").acquire()
        assert 0 < held.remaining() < (refused.value.retry_after or 0)
        pair.pass_time(59)
        until(lambda: granted("other"), what="the promoted standby is trusted")
        locks.close()
