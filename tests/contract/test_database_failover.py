"""A replica of PostgreSQL that is promoted without the newest locks."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from redlock_django import lock
from redlock_django.backends.database_dialects import SECOND, SERVERS
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.handler import locks
from redlock_django.testing.processes import ProcessGroup
from tests.contract.stores import DATABASE
from tests.ports import free_port
from tests.postgres import local_postgres, postgres_programs
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


def test_a_promoted_replica_is_not_trusted_until_all_locks_have_expired(
    settings: Settings,
    databases: Callable[[str, dict[str, Any]], None],
    database_access: None,
) -> None:
    with local_postgres() as entry, ProcessGroup("redlock-replica-") as processes:
        databases("failing", entry)
        call_command("migrate", "redlock_django", database="failing", verbosity=0)
        settings.REDLOCK = {
            "default": {"BACKEND": DATABASE, "DATABASE": "failing", "MAX_TTL": 60, "TTL": 60}
        }
        with lock("order:0"):  # the identity of the server is stored
            pass
        data, port = processes.directory / "data", str(free_port())
        programs = postgres_programs()
        account = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        os.chown(processes.directory, account.pw_uid, account.pw_gid)
        owner: dict[str, Any] = {"cwd": processes.directory}
        if os.geteuid() == 0:
            owner |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        copy = [
            programs / "pg_basebackup",
            "-h",
            "127.0.0.1",
            "-p",
            entry["PORT"],
            "-U",
            "postgres",
        ]
        copy += ["-D", data, "-R", "-c", "fast", "--no-sync"]
        subprocess.run(copy, check=True, capture_output=True, **owner)
        flags = [f"port={port}", "listen_addresses=127.0.0.1", "fsync=off"]
        flags += ["max_connections=200"]  # as the primary
        flags += [f"unix_socket_directories={processes.directory}", "primary_conninfo="]
        command = [str(programs / "postgres"), "-D", str(data)]
        command += [part for flag in flags for part in ("-c", flag)]
        processes.spawn(command, stderr=subprocess.DEVNULL, **owner)

        def answers() -> bool:
            try:
                return bool(ask(port, "SELECT pg_is_in_recovery()"))
            except psycopg.OperationalError:
                return False

        until(answers, what="the replica answers")

        def granted() -> bool:
            try:
                with lock("order:1"):
                    return True
            except StoreUnavailable:
                return False

        held = lock("order:1", renew=False).acquire()  # does not reach the replica
        ask(port, "SELECT pg_promote()")
        connections.settings["failing"]["PORT"] = port
        locks.close()
        with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
            lock("order:1").acquire()
        assert ask(port, "SELECT count(*) FROM redlock_django_lock WHERE resource = 'order:1'") == 0
        assert 0 < held.remaining() < (refused.value.retry_after or 0)
        ask(port, f"UPDATE {SERVERS} SET ready_at = ready_at - {59 * SECOND}")  # time passes
        locks.close()
        until(granted, what="the replica is trusted")
