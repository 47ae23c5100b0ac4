"""Locks in ZooKeeper: sessions and their faults, fences, credentials, settings, checks."""

from __future__ import annotations

import logging
import math
import select
import signal
import socket
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.views.debug import ExceptionReporter
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from redlock_django import lock
from redlock_django.backends.zookeeper import attempt as zookeeper_attempt
from redlock_django.backends.zookeeper import slots
from redlock_django.backends.zookeeper.attempt import ZooKeeperLease
from redlock_django.backends.zookeeper.backend import ZooKeeperBackend
from redlock_django.backends.zookeeper.fences import Requests
from redlock_django.backends.zookeeper.own_nodes import OwnNodes, look_at
from redlock_django.backends.zookeeper.paths import in_order
from redlock_django.backends.zookeeper.slots import SlotSearch
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.run_protocol import drive
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import (
    InvalidRedlock,
    LimitReached,
    LockLost,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.locking.services import locks
from redlock_django.signals import lock_lost
from redlock_django.wire.clock import clock
from tests import inspecting
from tests.app.checking import found
from tests.contract.interrupting import after_each_interrupt
from tests.contract.stores import (
    HOLDER,
    ZOOKEEPER,
    Started,
    Store,
    SyncCaller,
    ZooKeeper,
    taken,
    zookeeper_of,
)
from tests.inspecting import free, look
from tests.live.test_locking_interrupts import Lines
from tests.ports import free_port
from tests.programs import Program, started
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.zookeeper import LONGEST_SESSION, ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.engine.validity import Lease

SECRET = "swordfish-9317"


@pytest.fixture
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    return ZooKeeper(request, settings)


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client of the server."""
    client = KazooClient(hosts=zookeeper.host)
    client.start()
    yield client
    client.stop()
    client.close()


def kazoo_of(backend: ZooKeeperBackend) -> KazooClient:
    """Return the client of kazoo that a store uses."""
    return backend.session._client


# Sessions.


@pytest.fixture
def proxy(store: Store, settings: Settings, zookeeper: ZooKeeperServer) -> Iterator[FaultProxy]:
    """A proxy before the server, for the session of this process."""
    with FaultProxy(zookeeper.port) as proxy:
        section = {**settings.REDLOCK["default"], "HOSTS": [f"127.0.0.1:{proxy.port}"]}
        settings.REDLOCK = {"default": section}
        yield proxy
        locks.close()


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
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 2.5}}
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
    settings.REDLOCK = {
        "default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 60, "MAX_TTL": 300}
    }
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
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has lost the majority answers reads."""
    assert isinstance(store, ZooKeeper)
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    monkeypatch.setattr(zookeeper_of(), "clock", store._clock)
    zookeeper_of("other").acquire(("order:2",), 60, 0, HOLDER)
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
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 2}}
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
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 8}}
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
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 3600}}
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


def child_of(
    settings: Settings, lines: str, ready: str = "", **section: float
) -> AbstractContextManager[Program]:
    """Start a process with the settings of this one and of `section`."""
    redlock = {"default": {**settings.REDLOCK["default"], **section}}
    return started(lines, ready=ready, flags=("-W", "ignore"), redlock=redlock)


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
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "SESSION_TIMEOUT": 60}}
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


# Queues.


def test_only_the_next_waiter_is_woken(store: Store, client: KazooClient) -> None:
    caller = SyncCaller(store)
    backend, holder = zookeeper_of(), caller.acquire("order:1")
    waiters = []
    for number in range(3):
        waiters.append(caller.start("order:1", wait=20))
        until(partial(_waits, number + 1), what="it waits")
    nodes = in_order(client.get_children(backend.session.tree.queue("order:1")))
    assert nodes[0].token == holder.token
    ahead = {node.name for node in nodes[:-1]}
    until(lambda: _watched(backend) >= ahead, what="each waiter watches the one before it")
    assert _watched(backend) == ahead
    caller.release(holder)
    for waiter in waiters:
        caller.release(waiter.lease())


WAITER = """
with lock("order:2"):
    print(locks["default"].backend.session._client.client_id, flush=True)
lock("order:1", wait=60).acquire()
"""


@contextmanager
def killed_process(source: str, settings: Settings) -> Iterator[tuple[int, bytes]]:
    """Run a process such as WAITER, and kill it at the end; yield the session that it has printed.

    The session lasts longer than the test.
    """
    with child_of(settings, source, SESSION_TIMEOUT=60) as child:
        yield literal_eval(child.hear())


def end_session(session: tuple[int, bytes], zookeeper: ZooKeeperServer) -> None:
    """End the session of a process that died, as if its time-out had been waited for."""
    dead = KazooClient(hosts=zookeeper.host, client_id=session)
    dead.start()
    dead.stop()
    dead.close()


def test_a_killed_waiter_blocks_its_queue_until_its_session_ends(
    store: Store, settings: Settings, client: KazooClient, zookeeper: ZooKeeperServer
) -> None:
    holder = zookeeper_of().acquire(("order:1",), 60, 0, HOLDER)
    with killed_process(WAITER, settings) as session:
        until(lambda: _waits(1), what="it waits")
    queue = zookeeper_of().session.tree.queue("order:1")
    (_, node) = in_order(client.get_children(queue))
    zookeeper_of().release(holder)
    for _ in range(3):
        assert taken("order:1")
    assert client.exists(f"{queue}/{node.name}")
    end_session(session, zookeeper)
    zookeeper_of().release(zookeeper_of().acquire(("order:1",), 30, 20, HOLDER))


def test_a_waiter_whose_place_is_deleted_as_its_turn_comes_holds_nothing(
    store: Store, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = SyncCaller(store)
    holder = caller.acquire("order:1")
    deleted: list[str] = []

    write_again = OwnNodes._rewriting

    def delete_first(nodes: OwnNodes, paths: Sequence[str], ours: KazooClient) -> list[Any]:
        if not deleted:
            deleted.extend(paths)
            client.delete(paths[0])
        return write_again(nodes, paths, ours)

    monkeypatch.setattr(OwnNodes, "_rewriting", delete_first)
    waiter = caller.start("order:1", wait=20)
    until(partial(_waits, 1), what="it waits")
    caller.release(holder)
    lease = waiter.lease()
    assert isinstance(lease, ZooKeeperLease)
    assert deleted
    assert set(deleted).isdisjoint(lease.nodes)
    assert taken("order:1")


def test_a_node_that_was_created_without_an_answer_is_removed(
    proxy: FaultProxy, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that the client is connected to then may not know of the node yet."""
    backend = zookeeper_of()
    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER))
    queue, ours = backend.session.tree.queue("order:1"), kazoo_of(backend)
    create, sync, list_ = ours.create_async, ours.sync_async, ours.get_children_async
    is_current = []

    def caught_up(do: Callable[..., Any], *args: Any, **options: Any) -> Any:
        is_current.append(True)
        return do(*args, **options)

    def list_what_is_known(path: str, **options: Any) -> Any:
        if is_current:
            is_current.clear()
            return list_(path, **options)
        nothing = ours.handler.async_result()
        nothing.set(([], None) if options else [])
        return nothing

    monkeypatch.setattr(ours, "create_async", partial(caught_up, create))
    monkeypatch.setattr(ours, "sync_async", partial(caught_up, sync))
    monkeypatch.setattr(ours, "get_children_async", list_what_is_known)
    proxy.lose_replies = True
    acquired = Started(lambda: backend.acquire(("order:1",), 30, 30, HOLDER))
    assert proxy.lost.wait(60)
    proxy.lose_replies = False
    backend.release(acquired.lease())
    until(lambda: not client.get_children(queue), what="nothing is left in the queue")


def test_a_client_that_is_refused_again_writes_nothing(store: Store, client: KazooClient) -> None:
    backend = zookeeper_of()
    backend.acquire(("order:1",), 30, 0, HOLDER)
    assert taken("order:1")
    queue = backend.session.tree.queue("order:1")
    until(lambda: client.exists(queue).children_count == 1, what="the first refusal is undone")
    before = client.exists(queue).cversion
    with pytest.raises(ResourceLocked) as refused:
        backend.acquire(("order:1",), 30, 0, HOLDER)
    assert client.exists(queue).cversion == before
    assert refused.value.retry_after is not None
    assert 20 < refused.value.retry_after <= 30


@pytest.mark.slow
def test_the_servers_remove_a_queue_that_is_not_used(settings: Settings) -> None:
    """Also that of a process which died."""
    try:
        with local_zookeeper(java="-Dznode.container.checkIntervalMs=100") as (server,):
            section = {"BACKEND": ZOOKEEPER, "HOSTS": [server.host], "ZOOKEEPER_TIMEOUT": 30}
            settings.REDLOCK = {"default": section}
            backend, client = zookeeper_of(), KazooClient(hosts=server.host)
            client.start(timeout=60)
            backend.declare_new()
            queues = [backend.session.tree.queue("order:1"), *slot_queues(2)]
            for limit in (1, 2, 1, 2):
                for _ in range(20):  # also while the servers remove the queue
                    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER, limit))
                held = backend.acquire(("order:1",), 30, 0, HOLDER, limit)
                assert any(client.exists(queue) for queue in queues)
                backend.release(held)
                until(lambda: not any(map(client.exists, queues)), what="the queues are removed")
            client.stop()
            client.close()
            locks.close()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["acquire", "extend", "release"])
def test_interrupted_at_every_line(store: Store, what: str) -> None:
    with zookeeper_of().inspect() as inspection:
        for place in after_each_interrupt(what, 1, store="zookeeper", least=10, every=False):
            until(lambda: not inspection.held().locks, what=f"nothing is held after {place}")


# Slots of a name with a limit.


def hold_slots(many: int, limit: int, ttl: float = 60) -> list[Lease]:
    """Acquire slots of "order:1"."""
    return [zookeeper_of().acquire(("order:1",), ttl, 0, HOLDER, limit) for _ in range(many)]


def slot_queues(limit: int) -> list[str]:
    """Return the paths of the queues of all slots of "order:1"."""
    return [
        zookeeper_of().session.tree.queue(slot_resource("order:1", slot)) for slot in range(limit)
    ]


def nodes_in(client: KazooClient, *queues: str) -> list[str]:
    """Return the names of all nodes in these queues."""
    return [name for queue in queues if client.exists(queue) for name in client.get_children(queue)]


def choose_first(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[], object] = lambda: None
) -> None:
    """Make clients choose the first of the slots that they see free, after a call of `before`."""

    def choice(free: list[Any]) -> Any:
        before()
        return free[0]

    monkeypatch.setattr("redlock_django.backends.zookeeper.slots.random.choice", choice)


@pytest.mark.parametrize("limit", [2, 3])
def test_only_the_first_waiter_watches_the_slots(
    store: Store, client: KazooClient, limit: int
) -> None:
    caller, backend = SyncCaller(store), zookeeper_of()
    held = hold_slots(limit, limit)
    waiters = []
    for number in range(3):
        waiters.append(caller.start("order:1", wait=20, limit=limit))
        until(partial(_waits, number + 1), what="it waits")
    turns = in_order(client.get_children(backend.session.tree.turns("order:1")))
    ahead = {node.name for node in turns[:-1]}
    until(lambda: _watched(backend) >= ahead, what="each waiter watches the one before it")
    assert _watched(backend) == ahead
    for lease, waiter in zip(held, waiters, strict=False):
        until(lambda: _slots_watched(backend) == set(slot_queues(limit)), what="all are watched")
        caller.release(lease)
        assert waiter.lease().slot == lease.slot
    callbacks = kazoo_of(backend)._child_watchers.values()
    assert all(len(one) <= 1 for one in callbacks), "those of former waiters are not kept"


def test_a_node_that_is_gone_before_it_is_watched_leaves_no_watch(store: Store) -> None:
    """kazoo and the server would keep the watch of a node that is never made again."""
    caller, backend = SyncCaller(store), zookeeper_of()
    caller.release(hold_slots(1, 2)[0])
    gone = f"{backend.session.tree.queue('order:1')}/gone"
    started = clock()
    drive(Requests(backend.session).until_deleted(gone, 20.0), backend.session.perform)
    assert clock() < started + 10
    assert _watched(backend) == set()


def test_a_client_that_finds_no_slot_writes_nothing(store: Store, client: KazooClient) -> None:
    hold_slots(2, 2)
    queues = slot_queues(2)
    before = [(stat.version, stat.cversion) for stat in map(client.exists, queues)]
    with pytest.raises(LimitReached) as refused:
        hold_slots(1, 2)
    assert [(stat.version, stat.cversion) for stat in map(client.exists, queues)] == before
    assert client.exists(zookeeper_of().session.tree.turns("order:1")) is None
    assert refused.value.retry_after == pytest.approx(60, abs=5)


def test_clients_that_choose_the_same_slot_find_another(
    store: Store, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_first(monkeypatch)
    caller = SyncCaller(store)
    for _ in range(5):
        calls = [caller.start("order:1", wait=0, limit=3) for _ in range(3)]
        leases = [call.lease() for call in calls]
        assert {lease.slot for lease in leases} == {0, 1, 2}
        for lease in leases:
            caller.release(lease)
    turns = zookeeper_of().session.tree.turns("order:1")
    until(lambda: not nodes_in(client, turns), what="no client is left in the queue of turns")


def test_a_client_that_comes_second_to_a_slot_creates_no_node_there(
    store: Store, settings: Settings, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would be refused because of this node, which is about to be deleted."""
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    assert not taken("order:1")  # the queue exists
    before = client.exists(slot_queues(2)[0]).cversion
    faster: list[bool] = []

    def take_the_slot() -> None:
        if not faster:
            faster.append(True)
            zookeeper_of("other").acquire(("order:1",), 60, 0, HOLDER, 2)

    choose_first(monkeypatch, take_the_slot)
    (lease,) = hold_slots(1, 2)
    assert lease.slot == 1
    assert client.exists(slot_queues(2)[0]).cversion == before + 1


def test_a_client_is_not_refused_if_a_slot_was_released_since_it_looked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, look_at_holders = hold_slots(2, 2), SlotSearch._seconds_left

    def release_one(search: SlotSearch, slots: Sequence[Any]) -> Any:
        if len(held) == 2:
            zookeeper_of().release(held.pop())
        return (yield from look_at_holders(search, slots))

    monkeypatch.setattr(SlotSearch, "_seconds_left", release_one)
    (lease,) = hold_slots(1, 2)
    assert lease.slot not in {one.slot for one in held}


def test_a_client_without_a_limit_is_faster(
    store: Store, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not taken("order:1")  # the queue exists
    plain: list[Lease] = []

    def take_slot_0() -> None:
        if not plain:
            plain.append(zookeeper_of().acquire(("order:1",), 60, 0, HOLDER))

    choose_first(monkeypatch, take_slot_0)
    (lease,) = hold_slots(1, 2)
    assert lease.slot == 1
    until(lambda: len(nodes_in(client, *slot_queues(2))) == 2, what="no third node is left")
    assert zookeeper_of().release(plain[0]) is True


def test_a_slot_that_was_taken_without_an_answer_is_left(
    proxy: FaultProxy, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not taken("order:2")  # the session has begun

    def lose_the_next_answer() -> None:
        proxy.lose_replies = not proxy.lost.is_set()

    choose_first(monkeypatch, lose_the_next_answer)
    acquired = Started(lambda: zookeeper_of().acquire(("order:1",), 30, 30, HOLDER, 2))
    assert proxy.lost.wait(60)
    proxy.lose_replies = False
    lease = acquired.lease()
    until(lambda: len(nodes_in(client, *slot_queues(2))) == 1, what="one slot is held")
    assert zookeeper_of().release(lease) is True
    assert not nodes_in(client, *slot_queues(2))


def test_a_process_does_not_overtake_waiters_with_the_slot_that_it_released(
    store: Store, settings: Settings, client: KazooClient
) -> None:
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    held = hold_slots(2, 2)
    waiter = Started(lambda: zookeeper_of("other").acquire(("order:1",), 60, 20, HOLDER, 2))
    until(lambda: _waits(1), what="it waits")
    zookeeper_of().release(held[1])
    with pytest.raises(LimitReached):
        hold_slots(1, 2)
    assert waiter.lease().slot == held[1].slot
    until(lambda: len(nodes_in(client, *slot_queues(2))) == 2, what="two slots are held")


PERMIT = WAITER.replace("wait=60", "wait=60, limit=2").replace(
    ".acquire()", ".acquire(); sys.stdin.read()"
)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["holder", "waiter"])
def test_a_killed_client_leaves_its_slot_or_turn_when_its_session_ends(
    store: Store, settings: Settings, client: KazooClient, zookeeper: ZooKeeperServer, killed: str
) -> None:
    held = hold_slots(1 if killed == "holder" else 2, 2)
    queues = [*slot_queues(2), zookeeper_of().session.tree.turns("order:1")]
    with killed_process(PERMIT, settings) as session:
        until(lambda: len(nodes_in(client, *queues)) == len(held) + 1, what="it has joined")
        waiter = SyncCaller(store).start("order:1", wait=60, limit=2)
        until(lambda: len(nodes_in(client, *queues)) == len(held) + 2, what="one waits")
    if killed == "waiter":
        zookeeper_of().release(held.pop())
    assert not waiter.done
    end_session(session, zookeeper)
    assert waiter.lease().waited > 0
    until(lambda: len(nodes_in(client, *queues)) == 2, what="two slots are held")


@pytest.mark.slow
def test_a_waiter_takes_a_slot_that_a_killed_one_in_front_leaves_free(
    store: Store, settings: Settings, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its session ends."""
    monkeypatch.setattr(slots, "TURN", 0.2)
    held, turns = hold_slots(2, 2), zookeeper_of().session.tree.turns("order:1")
    with killed_process(PERMIT, settings):
        until(lambda: bool(nodes_in(client, turns)), what="it has joined")
    waiter = SyncCaller(store).start("order:1", wait=50, limit=2)
    until(lambda: len(nodes_in(client, turns)) == 2, what="one waits behind it")
    zookeeper_of().release(held.pop())
    waiter.lease()  # its place in the queue is deleted a moment later
    until(lambda: len(nodes_in(client, turns)) == 1, what="the killed one has its place still")


def test_a_waiter_with_a_larger_limit_takes_a_slot_that_one_in_front_cannot_take(
    store: Store, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "TURN", 0.2)
    caller, turns = SyncCaller(store), zookeeper_of().session.tree.turns("order:1")
    held = hold_slots(2, 2)
    front = caller.start("order:1", wait=50, limit=2)
    until(lambda: len(nodes_in(client, turns)) == 1, what="it waits")
    assert caller.start("order:1", wait=50, limit=3).lease().slot == 2
    zookeeper_of().release(held[1])
    assert front.lease().slot == held[1].slot


@pytest.mark.slow
def test_slots_and_turns_outlive_a_restart_of_the_server(
    store: Store, settings: Settings, zookeeper: ZooKeeperServer
) -> None:
    # A busy server may need long to start, and 3.8 sometimes accepts a connection then that it
    # never reads: the client makes another one after a third of its session.
    patience = {"SESSION_TIMEOUT": LONGEST_SESSION, "ZOOKEEPER_TIMEOUT": 120, "MAX_TTL": 300}
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], **patience}}
    held = hold_slots(3, 3, ttl=300)
    served: list[int] = []
    states: list[LeaseState] = []

    def serve(number: int) -> Lease:
        lease = zookeeper_of().acquire(("order:1",), 300, 240, HOLDER, 3)
        served.append(number)
        zookeeper_of().release(lease)
        return lease

    def is_answered() -> bool:
        states.append(zookeeper_of().extend(held[0], 300)[0])
        return states[-1] is not LeaseState.UNKNOWN

    waiters = []
    for number in range(2):
        waiters.append(Started(partial(serve, number)))
        until(partial(_waits, number + 1), what="it waits")
    zookeeper.kill()
    zookeeper.start()
    zookeeper.wait()
    until(is_answered, what="an extension is answered, all are UNKNOWN")
    assert states[-1] is LeaseState.RENEWED, zookeeper_of().session.reason
    with pytest.raises(LimitReached):
        hold_slots(1, 3)
    zookeeper_of().release(held[1])
    assert [waiter.lease().slot for waiter in waiters] == [held[1].slot] * 2
    assert served == [0, 1]


@pytest.mark.slow
def test_a_slots_minimum_hold_is_ended_by_a_waiter(store: Store, settings: Settings) -> None:
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    hold_slots(1, 2)
    held = lock("order:1", limit=2, min_hold=1.0, using="other")
    held.acquire()
    slot = held.slot
    held.release()
    zookeeper_of("other").close()  # so that it does not end the minimum hold itself
    with pytest.raises(LimitReached):
        hold_slots(1, 2)
    lease = zookeeper_of().acquire(("order:1",), 60, 20, HOLDER, 2)
    assert lease.slot == slot
    assert lease.waited > 0


@pytest.mark.slow
@pytest.mark.parametrize(("held", "limit"), [(0, 2), (2, 2), (1, 1)])
def test_an_interrupted_client_leaves_no_node_whether_it_waits_or_not(
    store: Store, client: KazooClient, held: int, limit: int
) -> None:
    hold_slots(held, limit)
    turns, lines = zookeeper_of().session.tree.turns("order:1"), Lines()

    def strike(wanted: tuple[tuple[str, int], int] | None = None) -> None:
        order = lock("order:1", limit=limit, wait=0.05 if held else 0.0)
        try:
            lines.run(order.acquire, wanted)
        except KeyboardInterrupt:
            assert lines.struck
        except ResourceLocked:
            assert held
        order.release()

    strike()
    places = [(place, n) for place, last in lines.seen.items() for n in sorted({1, last})]
    ours = [one for one in places if "/backends/zookeeper" in one[0][0]]
    assert any("/slots.py" in file for (file, _), _ in ours) is (limit > 1)
    for place in ours:
        strike(place)
        until(
            lambda: len(nodes_in(client, turns, *slot_queues(2))) == held,
            what=f"no node is left after {place}",
        )


# Fences.


def served_later(fences: list[int]) -> Started:
    """Start a waiter for "order:1", which notes its fence and releases the lock at once."""

    def serve() -> Lease:
        lease = zookeeper_of().acquire(("order:1",), 30, 20, HOLDER)
        fences.append(lease.fences[0])
        zookeeper_of().release(lease)
        return lease

    waiter = Started(serve)
    until(partial(_waits, 1), what="it waits")
    return waiter


def test_a_waiter_from_before_the_base_gets_a_higher_fence(
    store: Store, settings: Settings, client: KazooClient
) -> None:
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    backend = zookeeper_of()
    holder = backend.acquire(("order:1",), 30, 0, HOLDER)
    fences = [*holder.fences]
    waiter = served_later(fences)
    other = zookeeper_of("other")  # a new session, which raises the base
    fences.append(other.acquire(("order:2",), 30, 0, HOLDER).fences[0])
    base = client.exists(backend.session.tree.fences).version
    backend.release(holder)
    waiter.lease()
    assert client.exists(backend.session.tree.fences).version == base, (
        "a waiter raises it no further"
    )
    fences.append(other.acquire(("order:1",), 30, 0, HOLDER).fences[0])
    assert fences == sorted(set(fences))
    assert fences[-1] < 2**53


def test_a_client_that_joins_before_a_waiter_is_served_gets_a_higher_fence(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first when it looks, but was not when it created its node."""
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    other, fences = zookeeper_of("other"), list[int]()
    holder = zookeeper_of().acquire(("order:1",), 30, 0, HOLDER)
    waiter = served_later(fences)

    def look_late(queue: str, base: str, client: KazooClient) -> list[Any]:
        if client is kazoo_of(other) and not fences:
            until(partial(_waits, 2), what="it joined")
            zookeeper_of().release(holder)
            waiter.lease()
        return look_at(queue, base, client)

    monkeypatch.setattr(zookeeper_attempt, "look_at", look_late)
    fences.append(other.acquire(("order:1",), 30, 0, HOLDER).fences[0])
    assert len(fences) == 2
    assert fences == sorted(set(fences))


# Credentials.


@pytest.fixture
def guarded(store: Store, settings: Settings) -> ZooKeeperBackend:
    """The store with credentials."""
    options = {"auth_data": [("digest", f"locks:{SECRET}")]}
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "OPTIONS": options}}
    return zookeeper_of()


@pytest.mark.attack
def test_with_credentials_no_other_client_can_delete_locks(
    guarded: ZooKeeperBackend, client: KazooClient
) -> None:
    lease = guarded.acquire(("order:1",), 30, 0, HOLDER)
    queue = guarded.session.tree.queue("order:1")
    with pytest.raises(NoAuthError):
        client.get_children(queue)
    with pytest.raises(NoAuthError):
        client.delete(guarded.session.tree.root, recursive=True)
    assert free(guarded, "order:1").outcome.name == "RELEASED"
    assert guarded.extend(lease, 30)[0] is LeaseState.LOST


@pytest.mark.attack
def test_wrong_credentials_are_refused_and_never_shown(
    guarded: ZooKeeperBackend, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.NOTSET)
    guarded.acquire(("order:1",), 30, 0, HOLDER)
    wrong = f"{SECRET}-wrong"
    section = settings.REDLOCK["default"]
    settings.REDLOCK = {
        "default": {**section, "OPTIONS": {"auth_data": [("digest", f"locks:{wrong}")]}}
    }
    backend = zookeeper_of()
    with pytest.raises(StoreUnavailable, match="NoAuth: the servers do not allow it") as refused:
        backend.acquire(("order:1",), 30, 0, HOLDER)
    page = inspecting.held(backend)
    assert page.silent
    error = refused.value
    assert error.__traceback__ is not None
    frames = error.__traceback__.tb_next  # without this function's own
    debug_page = ExceptionReporter(None, type(error), error, frames)
    shown = [str(error), repr(error.tally), repr(backend.settings), str(page), caplog.text]
    assert SECRET not in "".join([*shown, debug_page.get_traceback_html()])


# Settings and checks.


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"HOSTS": []}, "HOSTS must name at least one server"),
        ({"HOSTS": "zk1:2181"}, "HOSTS must be a list"),
        ({"HOSTS": ["user:pw@zk1:2181"]}, "credentials are in OPTIONS"),
        ({"HOSTS": ["zk1:2181/chroot"]}, "the path of all locks is ROOT"),
        ({"HOSTS": ["zk1:port"]}, "HOSTS must be a list of hosts with ports"),
        ({"ROOT": "redlock"}, "ROOT must be an absolute path"),
        ({"ROOT": "/"}, "ROOT must be an absolute path"),
        ({"SESSION_TIMEOUT": 0.1}, "SESSION_TIMEOUT must be at least 0.2 s"),
        ({"SESSION_TIMEOUT": 1e10}, "SESSION_TIMEOUT must be at most 604800 s"),
        ({"ZOOKEEPER_TIMEOUT": 1e10}, "ZOOKEEPER_TIMEOUT must be at most 604800 s"),
        ({"OPTIONS": {"auth": 1}}, "OPTIONS: unknown key 'auth'"),
        ({"OPTIONS": {"auth_data": [SECRET]}}, "auth_data must be a list of pairs"),
        ({"OPTIONS": {"auth_data": [("sasl", SECRET)]}}, "use sasl_options"),
        ({"OPTIONS": {"ca": "ca.pem"}}, "ca has no effect without use_ssl: set use_ssl to True"),
        ({"OPTIONS": {"verify_certs": True, "use_ssl": False}}, "verify_certs has no effect"),
        ({"OPTIONS": {"keyfile": "k", "use_ssl": True}}, "keyfile has no effect without certfile"),
        ({"OPTIONS": {"sasl_options": {"password": SECRET}}}, "with the key 'mechanism'"),
        (
            {"OPTIONS": {"use_ssl": True, "check_hostname": True, "verify_certs": False}},
            "check_hostname needs verify_certs: set both or none",
        ),
        ({"OPTIONS": {"default_acl": [SECRET]}}, "a list of ACLs of kazoo.security"),
        ({"MASTERS": ["redis://x"]}, "unknown key 'MASTERS'"),
        ({"HOST": ["zk1"]}, "did you mean 'HOSTS'"),
    ],
)
def test_bad_settings_are_refused(
    settings: Settings, section: dict[str, Any], message: str
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": ZOOKEEPER, "HOSTS": ["zk1"], **section}}
    with pytest.raises(InvalidRedlock, match="REDLOCK") as refused:
        locks["default"]
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_options_of_tls_that_are_none_are_no_options(settings: Settings) -> None:
    options = {"use_ssl": False, "ca": None, "certfile": None, "keyfile": None}
    settings.REDLOCK = {"default": {"BACKEND": ZOOKEEPER, "HOSTS": ["zk1"], "OPTIONS": options}}
    assert locks["default"].settings.alias == "default"


@pytest.mark.attack
def test_deploy_warns_of_open_nodes(settings: Settings) -> None:
    section: dict[str, Any] = {"BACKEND": ZOOKEEPER, "HOSTS": ["zk1", "zk2"]}
    settings.REDLOCK = {"default": section}
    messages = found(deploy=True)
    assert "every client of the ZooKeeper servers can delete locks" in messages["W022"]
    section["OPTIONS"] = {"auth_data": [("digest", "a:b")]}
    assert "W022" not in found(deploy=True)
    section["OPTIONS"] = {"default_acl": OPEN_ACL_UNSAFE, **section["OPTIONS"]}
    assert "W022" in found(deploy=True)


# Three servers.


@pytest.fixture(scope="module")
def ensemble() -> Iterator[list[ZooKeeperServer]]:
    try:
        with local_zookeeper(3) as servers:
            yield servers
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


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
    until(partial(_acquires, "order:3"), what="locks can be acquired again", seconds=30)
    locks.close()


def _watched(backend: ZooKeeperBackend) -> set[str]:
    """Return the names of the nodes that the client watches."""
    return {path.rpartition("/")[2] for path in list(kazoo_of(backend)._data_watchers)}


def _slots_watched(backend: ZooKeeperBackend) -> set[str]:
    """Return the paths of the queues that the client watches."""
    return set(kazoo_of(backend)._child_watchers)


def _waits(many: int) -> bool:
    return look(zookeeper_of(), ["order:1"]).locks[0].waiters == many


def _declared() -> bool:
    with suppress(StoreUnavailable):
        return not zookeeper_of().declare_new()
    return False


def _acquires(resource: str) -> bool:
    try:
        with lock(resource):
            return True
    except StoreUnavailable:
        return False
