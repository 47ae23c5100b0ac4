"""`local_mariadb()`: a temporary MariaDB server, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def local_mariadb() -> Iterator[dict[str, Any]]:
    """Start a server, yield its entry for Django's DATABASES, and remove it after the block.

    Raise FileNotFoundError if MariaDB is not installed.
    """
    with ProcessGroup("redlock-mysql-") as processes:
        command, port = create_mariadb(processes.directory), free_port()
        log = processes.directory / "log"
        with log.open("wb") as output:
            process = processes.spawn([*command, f"--port={port}"], stderr=output)
        wait_for_mariadb(port, process, log)
        yield mariadb_entry(port)


def create_mariadb(directory: Path) -> list[str]:
    """Create the files of a server, and return the command that starts it; add its port.

    Raise FileNotFoundError if MariaDB is not installed.
    """
    install, server = shutil.which("mariadb-install-db"), shutil.which("mariadbd")
    if install is None or server is None:
        raise FileNotFoundError("MariaDB is not installed (apt-get install mariadb-server)")
    where = ["--no-defaults", f"--datadir={directory}/data"]
    if os.geteuid() == 0:
        where.append("--user=root")
    subprocess.run(
        [install, *where, "--auth-root-authentication-method=normal", "--skip-test-db"],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        capture_output=True,
    )
    return [
        server,
        *where,
        "--bind-address=127.0.0.1",
        f"--socket={directory}/mysql.sock",
        f"--pid-file={directory}/mysql.pid",
        "--innodb-flush-method=nosync",
        "--skip-log-bin",
        "--performance-schema=off",
    ]


def connect_to_mariadb(port: int, database: str | None = None) -> Any:
    """Return a new connection of PyMySQL."""
    import pymysql

    # Limit reads too: the server that answers on this port may not be MariaDB.
    where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "root"}
    return pymysql.connect(**where, database=database, read_timeout=20)


def wait_for_mariadb(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers on its port, and create the database of `mariadb_entry()`."""
    import pymysql

    deadline = time.monotonic() + 60
    while True:
        # Not pymysql.err.OperationalError: once Django has loaded its backend, that is another.
        with suppress(pymysql.OperationalError), connect_to_mariadb(port) as first:
            first.cursor().execute("CREATE DATABASE IF NOT EXISTS shop")
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"MariaDB did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def mariadb_entry(port: int) -> dict[str, Any]:
    """Return the entry for Django's DATABASES of a server."""
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "shop",
        "USER": "root",
        "PASSWORD": "",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        # Otherwise every connection reads all certificates of the system.
        "OPTIONS": {"ssl_disabled": True},
    }
