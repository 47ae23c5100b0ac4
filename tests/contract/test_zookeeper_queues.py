"""Queues of ZooKeeper: waiters, slots and fences, and what a client leaves there."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

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
from redlock_django.exceptions import LimitReached, ResourceLocked
from redlock_django.locking.services import locks
from redlock_django.wire.clock import clock
from tests.conftest import installed
from tests.contract.interrupting import after_each_interrupt
from tests.contract.stores import (
    HOLDER,
    ZOOKEEPER,
    Started,
    Store,
    SyncCaller,
    ZooKeeper,
    change,
    child_of,
    kazoo_of,
    taken,
    wait_for_waiters,
    zookeeper_of,
)
from tests.live.test_locking_interrupts import Lines
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.zookeeper import LONGEST_SESSION, ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.engine.validity import Lease


@pytest.fixture
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    return ZooKeeper(request, settings)


# Queues.


def test_only_the_next_waiter_is_woken(store: Store, client: KazooClient) -> None:
    caller = SyncCaller(store)
    backend, holder = zookeeper_of(), caller.acquire("order:1")
    waiters = []
    for number in range(3):
        waiters.append(caller.start("order:1", wait=20))
        wait_for_waiters(store, number + 1)
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
        wait_for_waiters(store, 1)
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
    wait_for_waiters(store, 1)
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
    often = local_zookeeper(java="-Dznode.container.checkIntervalMs=100")
    with installed(often) as (server,):
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
        wait_for_waiters(store, number + 1)
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
    store: Store, other: ZooKeeperBackend, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would be refused because of this node, which is about to be deleted."""
    assert not taken("order:1")  # the queue exists
    before = client.exists(slot_queues(2)[0]).cversion
    faster: list[bool] = []

    def take_the_slot() -> None:
        if not faster:
            faster.append(True)
            other.acquire(("order:1",), 60, 0, HOLDER, 2)

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
    store: Store, other: ZooKeeperBackend, client: KazooClient
) -> None:
    held = hold_slots(2, 2)
    waiter = Started(lambda: other.acquire(("order:1",), 60, 20, HOLDER, 2))
    wait_for_waiters(store, 1)
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
    session = zookeeper_of().session
    caller, turns = SyncCaller(store), session.tree.turns("order:1")
    held = hold_slots(2, 2)
    front = caller.start("order:1", wait=50, limit=2)
    until(lambda: len(nodes_in(client, turns)) == 1, what="it waits")
    with monkeypatch.context() as impatient:
        impatient.setattr(session, "patient_until", lambda wanted: wanted.asked)
        with pytest.raises(LimitReached, match="a slot is reserved for a waiter"):
            hold_slots(1, 3)
    monkeypatch.setattr(slots, "TURN", 0.2)
    assert caller.start("order:1", wait=50, limit=3).lease().slot == 2
    zookeeper_of().release(held[1])
    assert front.lease().slot == held[1].slot


@pytest.mark.slow
def test_slots_and_turns_outlive_a_restart_of_the_server(
    store: Store, settings: Settings, zookeeper: ZooKeeperServer
) -> None:
    # A busy server may need long to start, and 3.8 sometimes accepts a connection then that it
    # never reads: the client makes another one after a third of its session.
    change(settings, SESSION_TIMEOUT=LONGEST_SESSION, ZOOKEEPER_TIMEOUT=120, MAX_TTL=300)
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
        wait_for_waiters(store, number + 1)
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
def test_a_slots_minimum_hold_is_ended_by_a_waiter(store: Store, other: ZooKeeperBackend) -> None:
    hold_slots(1, 2)
    held = lock("order:1", limit=2, min_hold=1.0, using="other")
    held.acquire()
    slot = held.slot
    held.release()
    other.close()  # so that it does not end the minimum hold itself
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


def served_later(store: Store, fences: list[int]) -> Started:
    """Start a waiter for "order:1", which notes its fence and releases the lock at once."""

    def serve() -> Lease:
        lease = zookeeper_of().acquire(("order:1",), 30, 20, HOLDER)
        fences.append(lease.fences[0])
        zookeeper_of().release(lease)
        return lease

    waiter = Started(serve)
    wait_for_waiters(store, 1)
    return waiter


def test_a_waiter_from_before_the_base_gets_a_higher_fence(
    store: Store, other: ZooKeeperBackend, client: KazooClient
) -> None:
    backend = zookeeper_of()
    holder = backend.acquire(("order:1",), 30, 0, HOLDER)
    fences = [*holder.fences]
    waiter = served_later(store, fences)
    # A new session, which raises the base.
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
    store: Store, other: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first when it looks, but was not when it created its node."""
    fences = list[int]()
    holder = zookeeper_of().acquire(("order:1",), 30, 0, HOLDER)
    waiter = served_later(store, fences)

    def look_late(queue: str, base: str, client: KazooClient) -> list[Any]:
        if client is kazoo_of(other) and not fences:
            wait_for_waiters(store, 2)
            zookeeper_of().release(holder)
            waiter.lease()
        return look_at(queue, base, client)

    monkeypatch.setattr(zookeeper_attempt, "look_at", look_late)
    fences.append(other.acquire(("order:1",), 30, 0, HOLDER).fences[0])
    assert len(fences) == 2
    assert fences == sorted(set(fences))


def _watched(backend: ZooKeeperBackend) -> set[str]:
    """Return the names of the nodes that the client watches."""
    return {path.rpartition("/")[2] for path in list(kazoo_of(backend)._data_watchers)}


def _slots_watched(backend: ZooKeeperBackend) -> set[str]:
    """Return the paths of the queues that the client watches."""
    return set(kazoo_of(backend)._child_watchers)
