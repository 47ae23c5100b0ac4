"""The databases of the fencing tests: PostgreSQL, and MariaDB where it is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from redlock_django.testing.nursery import Nursery
from tests.live.fencing.accounts import Account
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest_django

ALIAS = "fencing"


@pytest.fixture(scope="session")
def mysql() -> Iterator[dict[str, Any]]:
    """A MariaDB server of our own, as one entry of Django's DATABASES; skips where missing."""
    pymysql = pytest.importorskip("pymysql")
    install, server = shutil.which("mariadb-install-db"), shutil.which("mariadbd")
    if install is None or server is None:
        pytest.skip("MariaDB is not installed (apt-get install mariadb-server)")
    pymysql.install_as_MySQLdb()
    with Nursery("redlock-mysql-") as nursery:
        port = free_port()
        data = nursery.directory / "data"
        where = ["--no-defaults", f"--datadir={data}"]
        if os.geteuid() == 0:
            where.append("--user=root")
        subprocess.run(
            [install, *where, "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            capture_output=True,
        )
        with (nursery.directory / "log").open("wb") as log:
            nursery.spawn(
                [
                    server,
                    *where,
                    f"--port={port}",
                    "--bind-address=127.0.0.1",
                    f"--socket={nursery.directory}/mysql.sock",
                    f"--pid-file={nursery.directory}/mysql.pid",
                    "--innodb-flush-log-at-trx-commit=0",
                ],
                stderr=log,
            )
        # A time-out for reading too: whatever answers there may be no MariaDB.
        access = {"host": "127.0.0.1", "port": port, "user": "root", "read_timeout": 10}
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(pymysql.err.OperationalError):
                first = pymysql.connect(**access)
                break
            assert time.monotonic() < deadline, (nursery.directory / "log").read_text()
            time.sleep(0.05)
        with first, first.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        yield {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "shop",
            "USER": "root",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(port),
        }


@pytest.fixture(params=["postgres", "mysql"])
def database(
    request: pytest.FixtureRequest, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[dict[str, Any]]:
    """The entry of a database, which is `connections["fencing"]` now, and has an account 1."""
    entry: dict[str, Any] = request.getfixturevalue(request.param)
    every = connections.configure_settings({"default": {}, ALIAS: dict(entry)})
    connections.settings[ALIAS] = every[ALIAS]
    with django_db_blocker.unblock():
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(Account)
        Account.objects.using(ALIAS).create(pk=1)
        yield entry
        with connections[ALIAS].schema_editor() as editor:
            editor.delete_model(Account)
        connections[ALIAS].close()
    del connections[ALIAS]
    del connections.settings[ALIAS]
