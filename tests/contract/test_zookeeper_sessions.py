"""Locks in ZooKeeper live as long as a session: faults of connections, processes and servers."""

from __future__ import annotations

import math
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from redlock_django import lock
from redlock_django.backends.zookeeper.backend import ZooKeeperBackend
from redlock_django.exceptions import LockLost, StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.signals import lock_lost
from redlock_django.wire.clock import clock
from tests import inspecting
from tests.conftest import installed
from tests.contract.stores import (
    HOLDER,
    ZOOKEEPER,
    Store,
    ZooKeeper,
    change,
    child_of,
    granted,
    kazoo_of,
    taken,
    zookeeper_of,
)
from tests.inspecting import look
from tests.ports import free_port
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.zookeeper import LONGEST_SESSION, ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    return ZooKeeper(request, settings)


@pytest.fixture
def lost() -> Iterator[list[str]]:
    """The reasons for which locks were reported as lost."""
    reasons: list[str] = []

    def note(reason: str, **about: Any) -> None:
        reasons.append(reason)

    lock_lost.connect(note)
    yield reasons
    lock_lost.disconnect(note)


@pytest.mark.slow
def test_an_expired_session_loses_its_locks(
    proxy: FaultProxy, settings: Settings, client: KazooClient, lost: list[str]
) -> None:
    change(settings, SESSION_TIMEOUT=2.5)
    held = lock("order:1")
    held.acquire()
    first, queue = held.fence, zookeeper_of().session.tree.queue("order:1")
    proxy.refuse()
    until(lambda: not client.get_children(queue), what="the servers end the session")
    with pytest.raises(LockLost):
        held.ensure_held()
    proxy.accept()
    until(lambda: not held.remaining() and lost, what="the loss is reported")
    assert lost == ["the session with ZooKeeper was lost"]
    with pytest.raises(LockLost, match="the session with ZooKeeper was lost"):
        held.ensure_held()
    with lock("order:1", wait=10) as again:
        assert again.fence > first
        until(again.remaining, what="the lock is held")


def test_a_lost_connection_leaves_a_lock_unknown_until_it_is_back(
    proxy: FaultProxy, lost: list[str]
) -> None:
    held = lock("order:1")
    held.acquire()
    held.ensure_held()
    proxy.refuse()
    until(lambda: not held.remaining(), what="the lock is unknown")
    with pytest.raises(LockLost, match="it is unknown whether the lock is held"):
        held.ensure_held()
    proxy.accept()
    until(lambda: held.remaining() > 0, what="the lock is held again")
    held.ensure_held()
    assert not lost
    assert held.release() is True


def test_a_lock_is_unknown_half_a_session_after_the_last_answer(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers may have ended the session, before any thread of the process notices."""
    change(settings, SESSION_TIMEOUT=60, MAX_TTL=300)
    held = lock("order:1", ttl=300, renew=False)
    held.acquire()
    held.ensure_held()
    holder, passed = threading.current_thread(), 31.0
    # The threads of the session go on, with writes six times in a timeout.
    monkeypatch.setattr(
        zookeeper_of(),
        "clock",
        lambda: clock() + passed * (threading.current_thread() is holder),
    )
    with pytest.raises(LockLost, match="it is unknown whether the lock is held"):
        held.ensure_held()


def test_reading_does_not_prove_that_the_session_lasts(
    store: Store, other: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has lost the majority answers reads."""
    assert isinstance(store, ZooKeeper)
    monkeypatch.setattr(zookeeper_of(), "clock", store._clock)
    other.acquire(("order:2",), 60, 0, HOLDER)
    held = lock("order:1", ttl=60, renew=False)
    held.acquire()
    assert taken("order:2")
    session = zookeeper_of().session
    # No write is answered: the session sends none.
    monkeypatch.setattr(session, "_beats_at", math.inf)
    store.pass_time(session._timeout * 0.6)
    with pytest.raises(LockLost, match="it is unknown whether the lock is held"):
        held.ensure_held()
    assert taken("order:2"), "which only reads, as it was refused before"
    with pytest.raises(LockLost, match="it is unknown whether the lock is held"):
        held.ensure_held()


# kazoo's thread ends with an error: kazoo issue 254, seen under random faults of the servers.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_of_kazoo_that_fails_is_replaced(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    change(settings, SESSION_TIMEOUT=2)
    held = lock("order:1", ttl=60)
    held.acquire()
    first, failed = held.fence, kazoo_of(zookeeper_of())

    def out_of_step(*args: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("xids do not match, expected 3 received 4")

    monkeypatch.setattr(failed._connection, "_read_response", out_of_step)
    until(lambda: not held.remaining() and lost, what="the loss is reported")
    with pytest.raises(LockLost, match="the session with ZooKeeper was lost"):
        held.ensure_held()
    with lock("order:1", wait=30) as again:  # the servers end the lost session before its TTL
        assert again.fence > first
        assert kazoo_of(zookeeper_of()) is not failed


@pytest.mark.slow
def test_a_server_that_hangs_is_left_although_requests_go_on(
    proxy: FaultProxy, settings: Settings, zookeeper: ZooKeeperServer
) -> None:
    change(settings, SESSION_TIMEOUT=8)
    held = lock("order:1", ttl=60)
    held.acquire()
    session = zookeeper_of().session
    proxy.hold()  # the process goes on writing, to prove that its session lasts
    until(lambda: not session.is_connected, what="the hung connection is given up")
    proxy.let_go()
    until(held.remaining, what="the lock is held again")


@pytest.mark.slow
def test_a_server_that_accepts_a_connection_and_does_not_answer_is_left(
    proxy: FaultProxy, settings: Settings, zookeeper: ZooKeeperServer, lost: list[str]
) -> None:
    """As ZooKeeper 3.8 sometimes does while it starts: kazoo would lose the session."""
    change(settings, SESSION_TIMEOUT=3600)
    held = lock("order:1", ttl=60)
    held.acquire()
    handler = kazoo_of(zookeeper_of()).handler
    assert handler.session_timeout == pytest.approx(LONGEST_SESSION), "as the server granted it"
    handler.session_timeout = 6.0  # so that the test lasts two seconds, a third of it
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        proxy.lead_to(silent.getsockname()[1])
        first, _ = silent.accept()
        with first:
            first.settimeout(60)
            assert first.recv(1), "the client asks to go on with its session"
            proxy._target = zookeeper.port  # of the connections from now on
            until(held.remaining, what="the lock is held again", seconds=40)
    assert not lost
    held.ensure_held()
    assert held.release() is True


CHILD = """
held = lock("order:1", ttl=30, renew=False)
held.acquire()
held.ensure_held()
print(held.fence, flush=True)
for line in sys.stdin:
    try:
        held.ensure_held()
        print("held", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_longer_than_its_session(
    store: Store, settings: Settings
) -> None:
    assert not taken("order:1")  # this process has connected
    with child_of(settings, CHILD, SESSION_TIMEOUT=4) as child:
        fence = int(child.hear())
        child.send_signal(signal.SIGSTOP)
        assert taken("order:1"), "its session lasts"
        lease = zookeeper_of().acquire(("order:1",), 30, 20, HOLDER)  # its TTL has not ended
        assert lease.fences[0] > fence
        child.say("?")
        child.send_signal(signal.SIGCONT)
        assert child.stdout
        assert select.select([child.stdout], [], [], 20)[0]
        assert child.hear() == "LockLost"


FORKING = """
import signal
def sockets():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + name))
        except OSError:  # it listed the folder
            pass
    return {one for one in found if one.startswith("socket:")}

before = sockets()
held = lock("order:1", ttl=30)
held.acquire()
session = locks["default"].backend.session
client = session._client.client_id
ours = sockets() - before
inspection = locks["default"].backend.inspect()
inspection.held()
# As if a thread were just stopping this client: a child has no thread that goes on with it.
inspection._client.handler._state_change.acquire()
child = os.fork()
if not child:
    signal.alarm(30)
    kept = sockets() & ours
    with lock("order:2"):
        pass
    print("child keeps:", len(kept), flush=True)
    sys.exit(0)  # calls what is registered for the end of a process
status = os.waitpid(child, 0)[1]
inspection._client.handler._state_change.release()
inspection.__exit__(None, None, None)
held.ensure_held()
print("parent:", os.waitstatus_to_exitcode(status), held.release(), flush=True)
assert session._client.client_id == client
locks.close()
print("closed:", len(sockets() - before), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="lists the descriptors of a process")
def test_a_child_leaves_the_session_of_its_parent_alone(store: Store, settings: Settings) -> None:
    """Nor does it keep the descriptors of the session, or wait at its end for their threads."""
    with child_of(settings, FORKING) as child:
        printed, _ = child.communicate(timeout=120)
    assert printed == "child keeps: 0\nparent: 0 True\nclosed: 0\n"
    assert child.returncode == 0


def test_the_end_of_a_process_frees_its_locks(store: Store, settings: Settings) -> None:
    change(settings, SESSION_TIMEOUT=60)
    zookeeper_of().acquire(("order:1",), 60, 0, HOLDER)
    locks.close()  # waits for the end of the session, on a busy machine not long enough
    until(lambda: not taken("order:1"), what="the lock is free", seconds=30)


@pytest.mark.slow
def test_a_minimum_hold_outlives_the_session(store: Store) -> None:
    began = time.monotonic()
    for resource, least in (("short", 1.0), ("long", 20.0)):
        held = lock(resource, min_hold=least)
        held.acquire()
        held.release()
    locks.close()
    assert taken("long")
    assert 0 < (look(zookeeper_of(), ["long"]).locks[0].ttl or 0) <= 20.3
    lease = zookeeper_of().acquire(("short",), 30, 10, HOLDER)
    assert time.monotonic() > began + 1.0
    assert zookeeper_of().release(lease) is True


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_named_in_the_error(settings: Settings) -> None:
    port = free_port()
    settings.REDLOCK = {
        "default": {
            "BACKEND": ZOOKEEPER,
            "HOSTS": [f"127.0.0.1:{port}"],
            "ZOOKEEPER_TIMEOUT": 0.3,
        }
    }
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}: not connected yet .*within 0.3"):
        zookeeper_of().acquire(("order:1",), 30, 0, HOLDER)
    page = inspecting.held(zookeeper_of())
    assert not page.complete
    assert list(page.silent) == [f"127.0.0.1:{port}"]
    (health,) = inspecting.health(zookeeper_of())
    assert not health.counted
    assert health.reason == "Connection refused"
    locks.close()


# Three servers.


@pytest.fixture(scope="module")
def ensemble() -> Iterator[list[ZooKeeperServer]]:
    with installed(local_zookeeper(3)) as servers:
        yield servers


def use(servers: list[ZooKeeperServer], settings: Settings, **section: float) -> None:
    """Use these servers, by these settings."""
    hosts = [server.host for server in servers]
    settings.REDLOCK = {"default": {"BACKEND": ZOOKEEPER, "HOSTS": hosts, **section}}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_one_of_three_servers_fails(
    ensemble: list[ZooKeeperServer], settings: Settings, fault: str
) -> None:
    use(ensemble, settings, SESSION_TIMEOUT=6, ZOOKEEPER_TIMEOUT=20)
    zookeeper_of().declare_new()
    fences = []
    for server in ensemble:
        held = lock("order:1", ttl=60)
        held.acquire()
        getattr(server, fault)()
        try:
            with lock("order:2", wait=10) as second:
                fences.append(second.fence)
            until(held.remaining, what="the lock is held", seconds=20)
            held.ensure_held()
            assert held.release() is True
        finally:
            server.resume() if fault == "pause" else server.start()
            server.wait()
    assert fences == sorted(set(fences))
    assert sum(one.counted for one in inspecting.health(zookeeper_of())) == 3
    locks.close()


@pytest.mark.nightly
def test_the_majority_of_the_servers_fails(
    ensemble: list[ZooKeeperServer], settings: Settings
) -> None:
    use(ensemble, settings, SESSION_TIMEOUT=3, ZOOKEEPER_TIMEOUT=1)
    until(_declared, what="the servers are trusted")
    held = lock("order:1", ttl=60)
    held.acquire()
    for server in ensemble[:2]:
        server.pause()
    try:
        until(lambda: not held.remaining(), what="the lock is unknown", seconds=20)
        with pytest.raises(LockLost):
            held.ensure_held()
        with pytest.raises(StoreUnavailable):
            lock("order:2").acquire()
        healthy = [one.counted for one in inspecting.health(zookeeper_of())]
        assert sum(healthy) < 2
    finally:
        for server in ensemble[:2]:
            server.resume()
    for server in ensemble:
        server.wait()
    until(partial(granted, resource="order:3"), what="locks can be acquired again", seconds=30)
    locks.close()


def _declared() -> bool:
    with suppress(StoreUnavailable):
        return not zookeeper_of().declare_new()
    return False
