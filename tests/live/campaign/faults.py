"""The kinds of faults of the campaign: each begins, and `Stage.after` ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from redlock_django.backends.database.dialects import WAITERS
from tests.live.campaign.stores import (
    Database,
    Machine,
    Masters,
    PostgreSQL,
    Server,
    SqliteFile,
    Store,
    ZooKeeper,
)
from tests.live.campaign.worker import SESSION, TTL

if TYPE_CHECKING:
    from redis import Redis

    from tests.live.campaign.processes import Workers
    from tests.zookeeper import ZooKeeperServer

LASTS = 2.0  # seconds that a fault lasts
SLOW = "local from = os.clock() while os.clock() < from + 0.6 do end"
ENDLESS = "while true do end"


class Stage(NamedTuple):
    """The targets of faults."""

    store: Any
    workers: Workers
    after: ExitStack  # ends the fault


class Kind(NamedTuple):
    """A kind of fault of some stores; a `majority` that it takes away may refuse all locks."""

    name: str
    of: tuple[type[Store], ...]
    begin: Callable[[Stage], object]
    majority: bool = False


KINDS: list[Kind] = []


def kinds_of(store: type[Store]) -> list[Kind]:
    """Return the kinds of faults of a store and its workers."""
    return [kind for kind in KINDS if issubclass(store, kind.of)]


def _kind(
    name: str, *of: type[Store], majority: bool = False
) -> Callable[[Callable[[Stage], object]], None]:
    return lambda begin: KINDS.append(Kind(name, of, begin, majority))


def _each(
    name: str, count: int, begin: Callable[[Machine, ExitStack], object], *, majority: bool = False
) -> None:
    """Add a kind of fault that strikes the first `count` masters."""

    def strike(stage: Stage) -> None:
        for machine in stage.store.masters[:count]:
            begin(machine, stage.after)

    KINDS.append(Kind(name, (Masters,), strike, majority or count > 2))


def _command(
    do: Callable[[Redis], object], undo: Callable[[Redis], object] = lambda client: None
) -> Callable[[Machine, ExitStack], None]:
    """Return a fault of one master: a command, and another one that ends it."""

    def begin(machine: Machine, after: ExitStack) -> None:
        def run(command: Callable[[Redis], object]) -> None:
            with suppress(RedisError), machine.client() as client:
                command(client)

        run(do)
        after.callback(run, undo)

    return begin


def _config(name: str, during: str, normal: str) -> Callable[[Machine, ExitStack], None]:
    return _command(
        lambda client: client.config_set(name, during),
        lambda client: client.config_set(name, normal),
    )


def _killed(machine: Machine, after: ExitStack) -> None:
    machine.kill()
    after.callback(machine.restart)


def _stopped(machine: Machine, after: ExitStack) -> None:
    machine.process.send_signal(signal.SIGSTOP)
    after.callback(machine.process.send_signal, signal.SIGCONT)


def _cut(machine: Machine, after: ExitStack) -> None:
    machine.cut()
    after.callback(machine.join)


def _muted(machine: Machine, after: ExitStack) -> None:
    machine.mute()
    after.callback(machine.unmute)


def _lossy(percent: int) -> Callable[[Machine, ExitStack], None]:
    def begin(machine: Machine, after: ExitStack) -> None:
        after.callback(machine.drop, 0)
        machine.drop(percent)

    return begin


def _narrow(machine: Machine, after: ExitStack) -> None:
    after.callback(machine.narrow, 0)
    machine.narrow(32)


def _resetting(machine: Machine, after: ExitStack) -> None:
    after.callback(machine.reset, on=False)
    machine.reset(on=True)


def _forgotten_by_nat(machine: Machine, after: ExitStack) -> None:
    with machine.client() as client:
        ports = [int(each["addr"].rpartition(":")[2]) for each in client.client_list()]
    after.callback(machine.forget_connections, ())
    machine.forget_connections(ports)


def _replica(machine: Machine, after: ExitStack) -> None:
    _command(
        lambda client: client.replicaof(machine.here, "1"),
        lambda client: client.replicaof("NO", "ONE"),
    )(machine, after)


def _restarted(machine: Machine, after: ExitStack) -> None:
    machine.kill()
    machine.restart()


def _restarted_with_data(machine: Machine, after: ExitStack) -> None:
    with machine.client() as client:
        client.save()
    machine.kill()
    machine.restart()


def _clock(seconds: float) -> Callable[[Machine, ExitStack], None]:
    def begin(machine: Machine, after: ExitStack) -> None:
        machine.clock.set(wall=seconds)
        after.callback(machine.clock.set)

    return begin


_SLEEP = _command(lambda client: client.eval(SLOW, 0))
_KILL_LINKS = _command(lambda client: client.client_kill_filter(_type="normal", skipme=True))
_FULL = _config("maxmemory", "1", "0")
_SHORT = _config("min-replicas-to-write", "1", "0")


def _evicting(machine: Machine, after: ExitStack) -> None:
    _config("maxmemory-policy", "allkeys-lru", "noeviction")(machine, after)
    _config("maxmemory", "100mb", "0")(machine, after)


def _closed(name: str, during: str, normal: str) -> Callable[[Machine, ExitStack], None]:
    """Return a setting that keeps others from connecting, and ends the connections that are."""

    def begin(machine: Machine, after: ExitStack) -> None:
        client = after.enter_context(machine.client())  # no other one can connect meanwhile
        client.config_set(name, during)
        after.callback(client.config_set, name, normal)
        client.client_kill_filter(_type="normal", skipme=True)

    return begin


def _busy(machine: Machine, after: ExitStack) -> None:
    def run() -> None:
        with suppress(RedisError), machine.client() as client:
            client.eval(ENDLESS, 0)

    _config("busy-reply-threshold", "50", "5000")(machine, after)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    after.callback(thread.join, 5)
    _command(lambda client: None, lambda client: client.script_kill())(machine, after)


def _paused(how: str) -> Callable[[Machine, ExitStack], None]:
    return _command(
        lambda client: client.client_pause(int(LASTS * 1000), all=how == "ALL"),
        lambda client: client.client_unpause(),
    )


_each("one master killed, empty afterwards", 1, _killed)
_each("two masters killed, empty afterwards", 2, _killed)
_each("three masters killed, empty afterwards", 3, _killed)
_each("one master restarted empty at once", 1, _restarted)
_each("one master restarted with its data", 1, _restarted_with_data)
_each("all masters restarted with their data", 5, _restarted_with_data)
_each("one master stopped (SIGSTOP)", 1, _stopped)
_each("two masters stopped (SIGSTOP)", 2, _stopped)
_each("three masters stopped (SIGSTOP)", 3, _stopped)
_each("one master is made a replica, and a master again", 1, _replica)
_each("two masters evict keys (CONFIG SET)", 2, _evicting)
_each("two masters full (OOM)", 2, _FULL)
_each("two masters short of replicas (NOREPLICAS)", 2, _SHORT)
_each("two masters slow (a script of 0.6 s)", 2, _SLEEP)
_each("two masters in a script (BUSY)", 2, _busy)
_each("CLIENT PAUSE ALL on two masters", 2, _paused("ALL"))
_each("CLIENT PAUSE WRITE on two masters", 2, _paused("WRITE"))
_each("CLIENT KILL of all links to one master", 1, _KILL_LINKS)
_each("CLIENT KILL of all links to all masters", 5, _KILL_LINKS)
_each("SCRIPT FLUSH on all masters", 5, _command(lambda client: client.script_flush()))
_each("FLUSHALL on one master", 1, _command(lambda client: client.flushall()))
_each("two masters with too many clients", 2, _closed("maxclients", "1", "10000"))
_each("two masters behind a new password", 2, _closed("requirepass", "canary", ""))
_each("one master cut off", 1, _cut)
_each("two masters cut off", 2, _cut)
_each("three masters cut off", 3, _cut)
_each("replies of two masters lost", 2, _muted)
_each("a third of the packets of two masters lost", 2, _lossy(33))
_each("one packet in 50 lost, all masters", 5, _lossy(2))
_each("two masters at 32 kbit/s", 2, _narrow)
_each("two masters reset every connection", 2, _resetting)
_each("a NAT forgets the links to two masters", 2, _forgotten_by_nat)
_each("a NAT forgets the links to all masters", 5, _forgotten_by_nat)
_each("one master's clock a minute ahead", 1, _clock(60))
_each("one master's clock a minute back", 1, _clock(-60))
# A majority that steps by less than MAX_CLOCK_SKEW ends leases early, which is not covered.
_each("two masters' clocks 0.2 s ahead", 2, _clock(0.2))


# Databases.


@_kind("all connections are ended", Server)
def _(stage: Stage) -> None:
    stage.store.end_connections()


@_kind("a server process is killed, and the server recovers", PostgreSQL)
def _(stage: Stage) -> None:
    stage.store.kill_process()


@_kind("the server is restarted", Server)
def _(stage: Stage) -> None:
    stage.store.stop()
    stage.store.start()


@_kind("the server crashes, and is started two seconds later", Server)
def _(stage: Stage) -> None:
    stage.store.crash()
    stage.after.callback(stage.store.start)


@_kind("the server is stopped for twice the TTL (SIGSTOP)", Server)
def _(stage: Stage) -> None:
    stage.store.signal_all(signal.SIGSTOP)
    stage.after.callback(stage.store.signal_all, signal.SIGCONT)


@_kind("the file system is full", SqliteFile)
def _(stage: Stage) -> None:
    stage.store.fill(stage.after)


@_kind("another transaction has all rows", Database)
def _(stage: Stage) -> None:
    stage.store.keep_rows(stage.after)


@_kind("the queue is emptied", Database)
def _(stage: Stage) -> None:
    stage.store.ask(f"DELETE FROM {WAITERS}")


@_kind("the database's clock is set back by half a second", Database)
def _(stage: Stage) -> None:
    stage.store.set_back(0.5)


@_kind("the database's clock is set back by an hour", Database)
def _(stage: Stage) -> None:
    stage.store.set_back(3600)


# ZooKeeper.


def _ensemble(
    name: str, many: int, begin: Callable[[ZooKeeperServer, ExitStack], object], *, leader: bool
) -> None:
    """Add a kind of fault that strikes so many servers, with the one that leads or without it."""

    def strike(stage: Stage) -> None:
        for server in stage.store.pick(many, leader=leader):
            begin(server, stage.after)

    KINDS.append(Kind(name, (ZooKeeper,), strike, many > 1))


def _dead(server: ZooKeeperServer, after: ExitStack) -> None:
    server.kill()
    after.callback(server.wait)
    after.callback(server.start)


def _paused_server(server: ZooKeeperServer, after: ExitStack) -> None:
    server.pause()
    after.callback(server.resume)


_ensemble("the server that leads is killed", 1, _dead, leader=True)
_ensemble("another server is killed", 1, _dead, leader=False)
_ensemble("the server that leads is stopped (SIGSTOP)", 1, _paused_server, leader=True)
_ensemble("another server is stopped (SIGSTOP)", 1, _paused_server, leader=False)
_ensemble("two servers are stopped (SIGSTOP)", 2, _paused_server, leader=True)


@_kind("a worker stopped for half its session (SIGSTOP)", ZooKeeper)
def _(stage: Stage) -> None:
    process = stage.workers.any().process
    process.send_signal(signal.SIGSTOP)
    time.sleep(SESSION / 2)
    process.send_signal(signal.SIGCONT)


# Faults of clients.


@_kind("a worker stopped for twice the TTL (SIGSTOP)", Store)
def _(stage: Stage) -> None:
    worker = stage.workers.any()
    worker.process.send_signal(signal.SIGSTOP)
    stage.after.callback(worker.process.send_signal, signal.SIGCONT)


@_kind("a worker killed (SIGKILL), and replaced", Store)
def _(stage: Stage) -> None:
    stage.workers.kill(stage.workers.any())
    # A busy machine needs seconds to start it, which are not part of what the fault costs.
    stage.after.callback(stage.workers.start().wait_started)


@_kind("a worker forks while its threads hold locks", Store)
def _(stage: Stage) -> None:
    stage.workers.any().obey(f"fork {LASTS}")


@_kind("no thread can be started, and all links are killed", Masters)
def _(stage: Stage) -> None:
    stage.workers.any().obey(f"no_threads {LASTS}")
    for machine in stage.store.masters:
        _KILL_LINKS(machine, stage.after)


@_kind("slow signal receivers", Masters)
def _(stage: Stage) -> None:
    stage.workers.any().obey(f"slow_receivers {LASTS}")


@_kind("a worker that holds the GIL", Store)
def _(stage: Stage) -> None:
    stage.workers.any().obey(f"hold_gil {LASTS}")


@_kind("a storm of signals (SIGUSR1)", Masters)
def _(stage: Stage) -> None:
    worker, over = stage.workers.any(), threading.Event()

    def strike() -> None:
        while not over.wait(0.002):
            worker.process.send_signal(signal.SIGUSR1)

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    stage.after.callback(thread.join, 5)
    stage.after.callback(over.set)


# The processes that use a file have one clock.
@_kind("a worker's wall clock an hour ahead", Masters, Server, ZooKeeper)
def _(stage: Stage) -> None:
    clock = stage.workers.any().clock
    clock.set(wall=3600)
    stage.after.callback(clock.set)


@_kind("a crowd: four more workers", Store)
def _(stage: Stage) -> None:
    more = [stage.workers.start() for _ in range(4)]
    for worker in more:
        stage.after.callback(stage.workers.end, worker)
        worker.wait_started()


@_kind("four processes that use the processors", Masters)
def _(stage: Stage) -> None:
    for _ in range(4):
        burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        stage.after.callback(burning.wait)
        stage.after.callback(burning.kill)


@_kind("a deployment whose MASTERS names another server", Masters)
def _(stage: Stage) -> None:
    _start_foreign(stage, [*stage.store.masters[:-1], stage.store.spare[0]])


@_kind("a deployment that has grown to seven masters", Masters)
def _(stage: Stage) -> None:
    _start_foreign(stage, [*stage.store.masters, *stage.store.spare])


def _start_foreign(stage: Stage, listed: Sequence[Machine]) -> None:
    worker = stage.workers.start(foreign=stage.store.settings_of(listed))
    stage.after.callback(stage.workers.end, worker)
    worker.wait_started()


assert 2 * max(TTL, SESSION) <= LASTS, "a worker must be stopped for twice the TTL"
