"""`local_postgres()`: a temporary PostgreSQL cluster, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def local_postgres(most_connections: int = 200) -> Iterator[dict[str, Any]]:
    """Start a cluster, yield its entry for Django's DATABASES, and remove it after the block.

    Raise FileNotFoundError if PostgreSQL is not installed, or if there is no user to run it as.
    """
    with ProcessGroup("redlock-postgres-") as processes:
        command, owner = create_postgres(processes.directory)
        port, log = free_port(), processes.directory / "log"
        command += ["-c", f"port={port}", "-c", f"max_connections={most_connections}"]
        command += ["-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        with log.open("wb") as output:
            process = processes.spawn(command, stderr=output, **owner)
        wait_for_postgres(port, process, log)
        yield postgres_entry(port)
        # Fast shutdown: PostgreSQL removes its shared memory, which outlives a killed postmaster.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(60)


def create_postgres(directory: Path) -> tuple[list[str], dict[str, Any]]:
    """Create a cluster in a directory. Return the command that starts it, and as which user.

    Add its port. Raise FileNotFoundError as `local_postgres` does.
    """
    programs, owner, data = postgres_programs(), postgres_owner(directory), str(directory / "data")
    initdb = [str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust"]
    initdb += ["-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, **owner)
    command = [str(programs / "postgres"), "-D", data, "-c", "listen_addresses=127.0.0.1"]
    command += ["-c", f"unix_socket_directories={directory}", "-c", "fsync=off"]
    return command, owner


def postgres_entry(port: int) -> dict[str, Any]:
    """Return the entry for Django's DATABASES of a cluster."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "PASSWORD": "",
        "HOST": "127.0.0.1",
        "PORT": str(port),
    }


class PgBouncer:
    """A pooler in transaction mode, with two connections to the server on a port.

    `more` has lines of its configuration for some databases.
    """

    def __init__(self, processes: ProcessGroup, server: str, more: str = "") -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise FileNotFoundError("PgBouncer is not installed (apt-get install pgbouncer)")
        processes.directory.chmod(0o755)
        self.port = str(free_port())
        self._config, self._more = processes.directory / "pgbouncer.ini", more
        self._write(server)
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        # Its log is shown where the test fails.
        self._process = processes.spawn([program, *user, str(self._config)], stderr=None)
        until(self._listens, "PgBouncer listens")

    def _listens(self) -> bool:
        with socket.socket() as client:
            return not client.connect_ex(("127.0.0.1", int(self.port)))

    def move(self, server: str) -> None:
        """Begin to send the statements of all clients to the server on another port."""
        self._write(server)
        self._process.send_signal(signal.SIGHUP)

    def _write(self, server: str) -> None:
        self._config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server} user=postgres\n"
            f"{self._more}"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\n"
            "unix_socket_dir =\npool_mode = transaction\ndefault_pool_size = 2\n"
        )


@contextlib.contextmanager
def local_pgbouncer(server: str, more: str = "") -> Iterator[PgBouncer]:
    """Start PgBouncer; raise FileNotFoundError if it is not installed."""
    with ProcessGroup("redlock-pgbouncer-") as processes:
        yield PgBouncer(processes, server, more)


def postgres_programs() -> Path:
    """Return the directory of the server programs; raise FileNotFoundError if there is none."""

    def version(folder: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())

    # Debian does not install the server programs in PATH.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
    if found := shutil.which("initdb"):
        folders.append(Path(found).resolve().parent)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise FileNotFoundError("PostgreSQL is not installed (apt-get install postgresql)")


def postgres_owner(directory: Path) -> dict[str, Any]:
    """Return how to start its programs in a directory, which is given to the user that they need.

    PostgreSQL refuses to run as root.
    """
    options: dict[str, Any] = {"cwd": directory}
    if os.geteuid() == 0:
        account = _plain_user()
        os.chown(directory, account.pw_uid, account.pw_gid)
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def _plain_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise FileNotFoundError(
        "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'"
    )


def wait_for_postgres(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers on its port."""
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(
                host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=10
            ).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from None
            time.sleep(0.02)
        else:
            return
