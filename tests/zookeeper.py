"""`local_zookeeper()`: temporary ZooKeeper servers, for tests and benchmarks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from redlock_django.testing.processes import ProcessGroup
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

JAR = Path("/usr/share/java/zookeeper.jar")
TICK = 100  # ms; sessions last at least 2 ticks
LONGEST_SESSION = 60  # seconds
# A small heap, the shared archive of the JDK's classes and only the quick compiler: half of the
# processor time that a server needs to start with Java's defaults.
_JAVA = (
    "-Xmx96m -Xss512k -Xshare:auto -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
    "-Dzookeeper.forceSync=no -Dzookeeper.jmx.log4j.disable=true -Dzookeeper.admin.enableServer="
    "false -Dzookeeper.4lw.commands.whitelist=srvr -Dzookeeper.maxClientCnxns=0"
)


@dataclass
class ZooKeeperServer:
    """One server; `start` starts it again with its data after `kill`."""

    command: list[str]
    processes: ProcessGroup
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The address, as HOSTS has it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return at once."""
        with self.log.open("ab") as output:
            self.process = self.processes.spawn(self.command, stdout=output, stderr=output)

    def kill(self) -> None:
        """Kill the server."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        """Restart the server without its data."""
        self.kill()
        shutil.rmtree(self.log.parent / "version-2")
        self.start()
        self.wait()

    def pause(self) -> None:
        """Stop the server; it answers again after `resume`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def serves(self) -> bool:
        """Return whether it answers requests, so also whether it has joined a majority."""
        return b"Mode:" in self.ask()

    def ask(self) -> bytes:
        """Return how the server describes itself, nothing if it does not answer."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as asked:
            asked.settimeout(2)
            asked.sendall(b"srvr")
            return asked.recv(4096)
        return b""

    def wait(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + 60
        while not self.serves():
            gone = self.process is None or self.process.poll() is not None
            if gone or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper did not start: {self.log.read_text()}")
            time.sleep(0.02)


@contextmanager
def local_zookeeper(many: int = 1, java: str = "") -> Iterator[list[ZooKeeperServer]]:
    """Start servers, an ensemble if there are several, and remove them after the block.

    `java` has more options of the JVM. Raise FileNotFoundError if ZooKeeper is not installed.
    """
    program = shutil.which("java")
    if program is None or not JAR.exists():
        raise FileNotFoundError("ZooKeeper is not installed (apt-get install zookeeper)")
    ports = [[free_port() for _ in range(3)] for _ in range(many)]
    peers = [f"server.{n}=127.0.0.1:{two}:{three}" for n, (_, two, three) in enumerate(ports, 1)]
    servers = []
    with ProcessGroup("redlock-zookeeper-") as processes:
        for number, (port, _, _) in enumerate(ports, 1):
            home = processes.directory / str(number)
            home.mkdir()
            (home / "myid").write_text(str(number))
            lines = [
                f"tickTime={TICK}",
                f"maxSessionTimeout={LONGEST_SESSION * 1000}",
                "initLimit=100",
                "syncLimit=20",
                f"dataDir={home}",
                f"clientPort={port}",
                "clientPortAddress=127.0.0.1",
                *(peers if many > 1 else []),
            ]
            (home / "zoo.cfg").write_text("\n".join(lines) + "\n")
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            command = [program, *_JAVA.split(), *java.split(), "-cp", os.fspath(JAR), main]
            command.append(os.fspath(home / "zoo.cfg"))
            servers.append(ZooKeeperServer(command, processes, home / "log", port))
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield servers
