"""Masters in a network namespace each, so that a test can break the connection to them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from redlock_django.testing.masters import find_server
from redlock_django.testing.processes import ProcessGroup


def namespace_obstacle() -> str:
    """Return why network namespaces cannot be created here, or "" if they can."""
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    if shutil.which("ip") is None:
        return "iproute2 is not installed (apt-get install iproute2)"
    name = f"rl{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
    except Refused as refused:
        return f"no network namespace can be created here: {refused}"
    try:
        _ip("-n", name, "link")
    except Refused as refused:  # in a chroot whose / is not a mount point
        return f"no network namespace can be entered here: {refused}"
    finally:
        _ip("netns", "del", name)
    return ""


class Refused(Exception):
    """The command `ip` failed; the message contains its error output."""


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise Refused(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _clear_up() -> None:
    """Delete the namespaces of test processes that were killed."""
    for pid, index in re.findall(r"^rl(\d+)-(\d+)", _ip("netns", "list"), re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            _ip("netns", "del", f"rl{pid}-{index}")


class FaultUnavailable(Exception):
    """This machine cannot cause such a network fault; the message says why."""


class Host:
    """A network namespace with one master, connected by a virtual cable."""

    def __init__(self, processes: ProcessGroup, index: int, subnet: str) -> None:
        self.name = f"rl{os.getpid()}-{index}"
        self._here, self.address = f"{subnet}.{4 * index + 1}", f"{subnet}.{4 * index + 2}"
        _ip("netns", "add", self.name)
        peer = ("peer", "name", "cable", "netns", self.name)
        _ip("link", "add", self.name, "type", "veth", *peer)
        _ip("addr", "add", f"{self._here}/30", "dev", self.name)
        _ip("link", "set", self.name, "up")
        self._inside("addr", "add", f"{self.address}/30", "dev", "cable")
        self.join()
        self.directory = processes.directory / self.name
        self.directory.mkdir()
        self._processes = processes
        self.start()

    def start(self, *options: str, **environment: str) -> None:
        """Start the master's process, with more options and environment variables."""
        program = [find_server(), "--bind", self.address, "--dir", str(self.directory)]
        program += ["--save", "", "--protected-mode", "no", *options]
        self.process = self._processes.spawn(
            ["ip", "netns", "exec", self.name, *program], env={**os.environ, **environment}
        )

    def kill(self) -> None:
        """Kill the master's process (SIGKILL), and wait until it has ended."""
        self.process.kill()
        self.process.wait()

    @property
    def url(self) -> str:
        """Return the URL of the master."""
        return f"redis://{self.address}:6379/0"

    def client(self) -> Redis:
        """Return a new plain client, without retries."""
        return Redis(
            host=self.address,
            socket_timeout=10.0,
            socket_connect_timeout=10.0,
            retry=Retry(NoBackoff(), 0),
        )

    def wait_ready(self) -> None:
        """Wait until the master answers."""
        deadline = time.monotonic() + 60
        while True:
            with suppress(RedisError), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < deadline, f"{self.url} does not answer"
            time.sleep(0.01)

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)

    def cut(self) -> None:
        """Disconnect the cable: packets are lost both ways, and no error is sent."""
        self._inside("link", "set", "cable", "down")

    def join(self) -> None:
        """Connect the cable again."""
        self._inside("link", "set", "cable", "up")

    def mute(self) -> None:
        """Drop the packets that the master sends; it still receives ours."""
        self._inside("route", "add", "blackhole", f"{self._here}/32")

    def unmute(self) -> None:
        """Deliver the packets that the master sends again."""
        self._inside("route", "del", "blackhole", f"{self._here}/32")

    def reset(self, *, on: bool) -> None:
        """Answer every packet to the master with a TCP reset, or no more."""
        self._spoil("iptables", "--flush", "INPUT")
        if on:
            answer = ("-j", "REJECT", "--reject-with", "tcp-reset")
            self._spoil("iptables", "-A", "INPUT", "-p", "tcp", *answer)

    def forget_connections(self, ports: Sequence[int]) -> None:
        """Drop all packets of these client ports, as a NAT does that has forgotten them."""
        self._spoil("iptables", "--flush", "INPUT")
        for port in ports:
            self._spoil("iptables", "-A", "INPUT", "-p", "tcp", "--sport", str(port), "-j", "DROP")

    def drop(self, percent: int) -> None:
        """Lose `percent` of the packets, both ways, from now on; raise FaultUnavailable."""
        for way in ("INPUT", "OUTPUT"):
            self._spoil("iptables", "--flush", way)
            if percent:
                chance = ("--mode", "random", "--probability", str(percent / 100))
                self._spoil("iptables", "-A", way, "-m", "statistic", *chance, "-j", "DROP")

    def narrow(self, kbit: int) -> None:
        """Limit replies to `kbit` kbit/s, 0 for no limit; raise FaultUnavailable."""
        rate = ["tbf", "rate", f"{kbit}kbit", "burst", "1600", "latency", "5s"]
        kind = rate if kbit else ["pfifo"]
        self._spoil("tc", "qdisc", "replace", "dev", "cable", "root", *kind)

    def _spoil(self, *words: str) -> str:
        if shutil.which(words[0]) is None:
            raise FaultUnavailable(f"no {words[0]} (apt-get install iptables iproute2)")
        said = subprocess.run(
            ["ip", "netns", "exec", self.name, *words], capture_output=True, text=True, check=False
        )
        if said.returncode:
            raise FaultUnavailable(f"{' '.join(words)}: {said.stderr.strip()}")
        return said.stdout

    def close(self) -> None:
        """Delete the namespace, which also deletes its cable."""
        _ip("netns", "del", self.name)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt in this block, where it would end the process at once.

    Namespaces outlive the process that has made them.
    """

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` and uv send one each
        raise KeyboardInterrupt

    is_ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """Start hosts with a master each, and delete them after the block."""
    with hosts_of(Host, number) as made:
        yield made


AnyHost = TypeVar("AnyHost", bound=Host)


@contextmanager
def hosts_of(kind: type[AnyHost], number: int) -> Iterator[list[AnyHost]]:
    """Start hosts of this kind, and delete them after the block."""
    _clear_up()
    subnet = f"10.{random.randrange(100, 250)}.{random.randrange(250)}"
    with _interrupted_by_sigterm(), ExitStack() as stack:
        made: list[AnyHost] = []
        processes = ProcessGroup("redlock-hosts-")
        for index in range(number):
            made.append(kind(processes, index, subnet))
            stack.callback(made[-1].close)
        stack.enter_context(processes)  # the servers stop before their namespaces are deleted
        for host in made:
            host.wait_ready()
        yield made
