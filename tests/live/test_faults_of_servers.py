"""Real masters that reply with errors or restart: full, loading, read-only, unable to save."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.engine.errors import QuorumUnreachable, ResourceLocked
from redlock_django.engine.inspection.faults import fault
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from redlock_django.wire.clock import clock
from tests.live.left_over import locked
from tests.live.traffic import left
from tests.ports import free_port
from tests.waiting import until
from tests.wire.variants import (
    VARIANTS,
    Variant,
    both,
    joined,
    trusted,
)

if TYPE_CHECKING:
    from redis import Redis

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

Break = Callable[[ExitStack, "Redis"], None]


def close_other_connections(client: Redis) -> None:
    """Close all connections of a server except this one."""
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)


def short_of_replicas(after: ExitStack, client: Redis) -> None:
    client.config_set("min-replicas-to-write", "1")
    after.callback(client.config_set, "min-replicas-to-write", "0")


def out_of_memory(after: ExitStack, client: Redis) -> None:
    client.config_set("maxmemory", "1")
    after.callback(client.config_set, "maxmemory", "0")


def without_its_master(after: ExitStack, client: Redis) -> None:
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof("127.0.0.1", str(free_port()))
    after.callback(client.config_set, "replica-serve-stale-data", "yes")
    after.callback(client.replicaof, "NO", "ONE")


def behind_a_password(after: ExitStack, client: Redis) -> None:
    client.config_set("requirepass", "canary")
    after.callback(client.config_set, "requirepass", "")
    close_other_connections(client)


def without_rights(after: ExitStack, client: Redis) -> None:
    client.acl_setuser("default", enabled=True, commands=["-evalsha"])
    after.callback(client.acl_setuser, "default", enabled=True, commands=["+@all"])


def full_of_clients(after: ExitStack, client: Redis) -> None:
    limit = client.config_get("maxclients")["maxclients"] or ""
    client.config_set("maxclients", "1")
    after.callback(client.config_set, "maxclients", limit)
    close_other_connections(client)


def with_a_key_of_another_type(after: ExitStack, client: Redis) -> None:
    client.lpush("redlock:lock:order:1", "rubbish")
    after.callback(client.delete, "redlock:lock:order:1")


ERRORS = [
    (short_of_replicas, "answered NOREPLICAS"),
    (out_of_memory, "answered OOM"),
    (without_its_master, "is a replica of "),
    (behind_a_password, "needs a password: set one in OPTIONS"),
    (without_rights, "its ACL forbids 'evalsha'"),
    (full_of_clients, "has too many clients (maxclients)"),
    (with_a_key_of_another_type, "one of its keys has another type"),
]


@pytest.mark.fault(without=("cluster nodes vote",))
@both
@pytest.mark.parametrize(
    ("break_master", "reason"), ERRORS, ids=[fault.__name__ for fault, _ in ERRORS]
)
def test_masters_that_answer_with_an_error(
    name: str, masters: list[LocalMaster], break_master: Break, reason: str
) -> None:
    with joined(name, masters[:3]) as variant, ExitStack() as after:
        clients = [after.enter_context(master.client()) for master in masters[:2]]
        break_master(after, clients[0])
        assert variant.release(variant.acquire("order:2", wait=60.0)) is True
        break_master(after, clients[1])

        def reported() -> bool:
            with pytest.raises(QuorumUnreachable) as caught:
                variant.acquire("order:1")
            found = list(caught.value.tally.values())
            return all(each.startswith(reason) for each in found[:2])

        until(reported, f"both masters are reported: {reason}")
        after.close()
        variant.wait_usable(3)
        assert variant.release(variant.acquire("order:1", wait=60.0)) is True
        variant.settle()
        until(lambda: not left(masters[:3]), "all locks are deleted")


@pytest.mark.fault(without=("an extension writes the lock again",))
@both
def test_full_masters_still_extend_and_release(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3], max_ttl=60.0) as variant, ExitStack() as after:
        lease = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        for master in masters[:3]:
            out_of_memory(after, after.enter_context(master.client()))
        with pytest.raises(QuorumUnreachable, match="answered OOM"):
            variant.acquire("order:2")
        state, lease = variant.extend(lease, ttl=60.0)
        assert state is LeaseState.RENEWED
        assert variant.release(lease) is True
        variant.settle()
        assert not left(masters[:3])


@contextmanager
def unable_to_save(master: LocalMaster) -> Iterator[None]:
    """Make a master refuse every write: let its last snapshot fail."""
    with ExitStack() as after, master.client() as client:
        in_the_way = master.directory / "dump.rdb"
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir()
        after.callback(os.rmdir, in_the_way)
        client.config_set("save", "3600 1000000")
        after.callback(client.config_set, "save", "")
        client.bgsave()

        def failed() -> bool:
            info = client.info("persistence")  # another snapshot may still be in progress
            return not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] == "err"

        until(failed, "the snapshot has failed")
        yield


@pytest.mark.slow
@pytest.mark.fault(without=("too few answers are a success",))
@pytest.mark.parametrize("name", VARIANTS[1:])
def test_masters_that_refuse_every_write(name: str, masters: list[LocalMaster]) -> None:
    """They refuse releases too: the result is unknown, and the release is repeated."""
    with joined(name, masters[:3], max_ttl=60.0) as variant, ExitStack() as stack:
        lease = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        stack.enter_context(unable_to_save(masters[0]))
        assert variant.release(variant.acquire("order:2")) is True
        stack.enter_context(unable_to_save(masters[1]))
        with pytest.raises(QuorumUnreachable, match="answered MISCONF"):
            variant.acquire("order:3")
        assert variant.extend(lease, ttl=60.0)[0] is LeaseState.UNKNOWN
        assert variant.release(lease) is None
        variant.settle()
        assert locked(masters[:3]) == {"redlock:lock:order:1": 2}
        stack.close()
        until(lambda: not locked(masters[:3]), "the refused release is repeated")
        assert variant.release(variant.acquire("order:1", wait=60.0)) is True
        assert not any(master.refused_releases for master in variant.links.masters)


@pytest.mark.slow
@pytest.mark.fault(without=("a loading master is counted",))
@both
def test_a_master_that_is_still_loading(name: str, masters: list[LocalMaster]) -> None:
    slow = ["--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"]
    slow += ["--key-load-delay", "20000"]  # in µs, for each key
    with local_masters(1, args=slow) as [loading], ExitStack() as stack:
        with loading.client() as client:
            client.mset({f"rubbish:{n}": "x" * 1100 for n in range(1000)})
            client.save()
        three = [*masters[:2], loading]
        variant = stack.enter_context(joined(name, three))
        loading.kill()
        loading.spawn()
        assert variant.release(variant.acquire("order:1", wait=60.0)) is True
        # A client notices that a link is closed only when it sends a command.
        link_state = variant.links.masters[2]
        until(lambda: variant.fault(link_state) == str(fault("loading")), "it is loading")
        assert variant.release(variant.acquire("order:1")) is True
        with loading.client() as client:
            client.config_set("key-load-delay", "0")
        variant.wait_usable(3)


# Masters that restart.


@pytest.fixture(scope="module")
def durable() -> Iterator[list[LocalMaster]]:
    """Start three masters that write every command to disk before they reply."""
    with local_masters(3, args=["--appendonly", "yes", "--appendfsync", "always"]) as started:
        yield started


@pytest.mark.fault
@both
@pytest.mark.parametrize("kept", [True, False], ids=["on disk", "in memory"])
def test_masters_that_write_every_command_to_disk_keep_their_locks(
    name: str, kept: bool, durable: list[LocalMaster], masters: list[LocalMaster]
) -> None:
    """RESTART_DELAY is 0, which is safe for such masters only."""
    three = durable if kept else masters[:3]
    for master in durable:
        with master.client() as client:
            client.flushall()
    long = {"max_ttl": 60.0}
    with joined(name, three, **long) as variant, joined(name, three, **long) as rival:
        held = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        for master in three:
            master.kill()
        for master in three:
            master.spawn()
        for master in three:
            master.wait_ready()
        if kept:
            with pytest.raises(ResourceLocked):
                acquire_when_linked(rival)
            until(lambda: variant.extend(held)[0] is LeaseState.RENEWED, "the lock is extended")
        else:
            assert acquire_when_linked(rival) > held.fences
            assert clock() < held.until


@pytest.mark.slow
def test_a_clean_shutdown_writes_what_is_not_on_disk_yet() -> None:
    """With `appendfsync no`, the server leaves the disk to the kernel until it shuts down."""
    with local_masters(1, args=["--appendonly", "yes", "--appendfsync", "no"]) as (master,):
        with master.client() as client:
            client.set("a lock", 1, px=600_000)
        master.stop()
        master.start()
        with master.client() as client:
            assert client.pttl("a lock") > 0


def acquire_when_linked(variant: Variant) -> tuple[int, ...]:
    """Acquire the lock when all masters are back, and return its fences."""
    until(lambda: not lacks_masters(variant), "the links are back")
    return variant.acquire("order:1").fences


def lacks_masters(variant: Variant) -> bool:
    try:
        variant.release(variant.acquire("order:2"))
    except QuorumUnreachable:
        return True
    return variant.usable() < 3


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    ("name", "delay", "ttl"),
    [("threads", 0.9, 0.7), ("loop", 0.9, 0.7), ("loop", 0.0, 60.0)],
    ids=["guarded-threads", "guarded-loop", "unguarded"],
)
def test_all_masters_are_restarted_within_one_ttl(
    name: str, delay: float, ttl: float, masters: list[LocalMaster]
) -> None:
    """The masters restart empty, one by one. Without the delay, there would be two holders."""
    deployment: dict[str, Any] = {
        "restart_delay": delay,
        "max_ttl": ttl,
        "max_clock_skew": 0.1,
    }
    with (
        trusted(name, masters, **deployment) as variant,
        joined(name, masters, **deployment) as rival,
    ):
        held = variant.acquire("order:1", ttl=ttl, wait=60.0)
        for master in masters:
            master.restart()
        taken = rival.acquire("order:1", ttl=ttl, wait=60.0)
        assert taken.fences > held.fences
        assert (clock() >= held.until) is bool(delay)
        rival.release(taken)
