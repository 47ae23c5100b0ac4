"""Which masters count: restarted or flushed masters, and unsuitable servers."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import OutOfMemoryError

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from redlock_django.wire.clock import clock
from redlock_django.wire.links import master as master_module
from redlock_django.wire.servers import probe
from redlock_django.wire.servers.info import read_info
from tests import inspecting
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.wire.variants import (
    VARIANTS,
    Variant,
    both,
    joined,
    make_backend,
    open_variant,
    trust,
    trusted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


def marker(master: LocalMaster) -> bytes | None:
    with master.client() as client:
        found: bytes | None = client.get("redlock:master")
    return found


# Masters that may have lost their locks.


def empty(master: LocalMaster) -> None:
    master.restart()


def flushed(master: LocalMaster) -> None:
    with master.client() as client:
        client.flushall()


def restored(master: LocalMaster) -> None:
    """Restart with the snapshot on disk, which is older than the lock."""
    assert (master.directory / "dump.rdb").exists()
    master.restart()
    (master.directory / "dump.rdb").unlink()


def prepare(forget: Callable[[LocalMaster], None], master: LocalMaster) -> None:
    """Save a snapshot if that is what the master will restart with."""
    if forget is restored:
        with master.client() as client:
            client.save()


forgetting = pytest.mark.parametrize(
    ("name", "forget", "doubt"),
    [
        ("threads", empty, "new or emptied"),
        ("loop", flushed, "new or emptied"),
        ("threads", restored, "restarted"),
    ],
)


@pytest.fixture
def often_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for INFO more often than every two seconds."""
    monkeypatch.setattr(master_module, "INSPECTED", 0.3)


@pytest.mark.slow
@forgetting
def test_a_master_that_may_have_forgotten_is_not_counted(
    name: str, masters: list[LocalMaster], forget: Callable[[LocalMaster], None], doubt: str
) -> None:
    with trusted(
        name, masters[:3], restart_delay=60.0, max_ttl=60.0, master_timeout=0.5
    ) as variant:
        prepare(forget, masters[2])
        lease = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        forget(masters[2])
        master = variant.links.masters[2]

        def doubted() -> bool:
            variant.release(variant.acquire("order:2", wait=60.0))
            return variant.fault(master).startswith(f"{doubt}: trusted in")

        until(doubted, f"{doubt}: {variant.fault(master)}")
        masters[0].pause()  # so that the vote of master 2 decides
        with pytest.raises(QuorumUnreachable, match=doubt):
            variant.acquire("order:2")
        state, _ = variant.extend(lease, ttl=60.0)
        assert state is LeaseState.UNKNOWN, "one master has the lock, two are not counted"
        variant.release(lease)
        masters[0].resume()


@pytest.mark.slow
@pytest.mark.fault(without=("a restart goes unnoticed",))
@forgetting
def test_a_master_that_may_have_forgotten_counts_only_after_the_delay(
    name: str, masters: list[LocalMaster], forget: Callable[[LocalMaster], None], doubt: str
) -> None:
    with trusted(name, masters[:3], restart_delay=0.6, master_timeout=1.0) as variant:
        prepare(forget, masters[2])
        before = marker(masters[2])
        forgot = clock()
        forget(masters[2])

        def marked() -> bool:
            variant.release(variant.acquire("order:1", wait=60.0))
            return marker(masters[2]) not in (None, before)

        until(marked, "the master has a new marker")
        masters[0].pause()  # so that the vote of master 2 decides

        def counted() -> bool:
            with suppress(NotAcquired):
                variant.release(variant.acquire("order:2"))
                return True
            return False

        until(counted, f"{doubt}: {variant.fault(variant.links.masters[2])}")
        assert clock() - forgot >= 0.6
        masters[0].resume()


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(("name", "delay", "ttl"), [("loop", 0.9, 0.7), ("threads", 0.0, 60.0)])
def test_an_old_holder_and_a_master_that_forgot_never_make_two(
    name: str, masters: list[LocalMaster], delay: float, ttl: float
) -> None:
    """Client A holds the lock on 3 of 5 masters, one of them restarts empty, B reaches all five.

    Without RESTART_DELAY there are two holders, which also proves that this test detects them.
    """
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(master.port)) for master in masters[3:]]
        deployment = {"restart_delay": delay, "max_ttl": ttl, "max_clock_skew": 0.1}
        urls = [*(master.url for master in masters[:3]), *(proxy.url for proxy in proxies)]
        backend_a = make_backend(urls, **deployment)  # type: ignore[arg-type]
        for master in masters:
            trust(master, backend_a.deployment)
        a = stack.enter_context(open_variant(name, backend_a))
        b = stack.enter_context(joined(name, masters, **deployment))
        a.start()
        a.wait_usable(5)
        for proxy in proxies:
            proxy.refuse()
        held = a.acquire("order:1", ttl=ttl, wait=60.0)
        a.settle()
        masters[2].restart()
        taken = b.acquire("order:1", ttl=ttl, wait=60.0)
        if delay:
            assert clock() >= held.until
            assert taken.fences > held.fences
        else:
            assert clock() < held.until
        b.release(taken)


def test_a_missing_or_invalid_marker_is_written_again(masters: list[LocalMaster]) -> None:
    with trusted("threads", masters[:3], restart_delay=0.25) as variant:
        for text in (None, b"rubbish", b"0" * 40 + b" 17"):
            with masters[0].client() as client:
                if text is None:
                    client.delete("redlock:master")
                else:
                    client.set("redlock:master", text)
            assert variant.release(variant.acquire("order:1")) is True
            until(
                lambda text=text: marker(masters[0]) not in (None, text),  # type: ignore[misc]
                "the marker is written again",
            )
            variant.wait_usable(3)


# Unsuitable servers.


def replica(master: LocalMaster, of: LocalMaster) -> None:
    with master.client() as client:
        client.replicaof("127.0.0.1", str(of.port))


def evicting(master: LocalMaster, of: LocalMaster) -> None:
    with master.client() as client:
        client.config_set("maxmemory", "50mb")
        client.config_set("maxmemory-policy", "allkeys-lru")


@pytest.mark.fault(without=("cluster nodes vote",))
def test_a_cluster_node_is_not_counted_and_named() -> None:
    with (
        local_masters(1, args=["--cluster-enabled", "yes"]) as [node],
        open_variant("threads", make_backend([node.url])) as variant,
        pytest.raises(QuorumUnreachable, match="is a cluster node"),
    ):
        variant.acquire("order:1")


@pytest.mark.fault
@both
def test_a_master_that_becomes_a_replica_is_dropped_and_taken_back(
    name: str, masters: list[LocalMaster]
) -> None:
    with trusted(name, masters[:3]) as variant:
        replica(masters[0], masters[4])
        assert variant.release(variant.acquire("order:1")) is True
        variant.settle()
        master = variant.links.masters[0]
        until(lambda: "is a replica" in variant.fault(master), "the replica is named")
        assert variant.release(variant.acquire("order:1")) is True
        with masters[0].client() as client:
            client.replicaof("NO", "ONE")
        variant.wait_usable(3)


def copied(master: LocalMaster, of: LocalMaster) -> None:
    """Make a server take another server's data, and be a master again."""
    with master.client() as client, of.client() as source:
        source.config_set("repl-diskless-sync-delay", "0")
        client.replicaof("127.0.0.1", str(of.port))
        until(lambda: client.info()["master_link_status"] == "up", "the data is copied")
        client.replicaof("NO", "ONE")


def is_doubted(variant: Variant, index: int) -> bool:
    """Return whether a master may have forgotten, as seen by a lock that is acquired now."""
    variant.release(variant.acquire("order:2"))
    return variant.doubt(index) == "restarted"


@pytest.mark.slow
@pytest.mark.fault(without=("an old copy is trusted",))
@pytest.mark.usefixtures("often_inspected")
def test_a_master_that_takes_an_old_copy_of_its_data_is_not_counted(
    masters: list[LocalMaster],
) -> None:
    """A backup server is made from master 2, which later takes its data back."""
    with trusted("threads", masters[:3], restart_delay=3.0) as variant:
        copied(masters[3], masters[2])
        lease = variant.acquire("order:1")
        variant.settle()
        copied(masters[2], masters[3])
        with masters[2].client() as client:
            assert not client.exists("redlock:lock:order:1")
            assert client.get("redlock:master"), "the marker comes with the data"
        until(lambda: is_doubted(variant, 2), "the copy is noticed")
        variant.release(lease)


def test_a_server_without_a_run_id_is_named(
    masters: list[LocalMaster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def without(answer: bytes) -> dict[str, str]:
        return {key: value for key, value in read_info(answer).items() if key != "run_id"}

    monkeypatch.setattr(probe, "read_info", without)
    backend = make_backend([master.url for master in masters[:3]])
    with open_variant("threads", backend) as variant:
        for _ in range(3):
            with pytest.raises(QuorumUnreachable, match="reports no run_id in INFO"):
                variant.acquire("order:1")
        variant.wait_fault("reports no run_id")
    said = [record for record in caplog.records if "run_id" in record.getMessage()]
    assert len(said) == 3, "once for each master"
    assert not any(record.exc_info for record in said)
    assert {f.code for one in inspecting.health(backend) for f in one.faults} == {"run_id"}


@pytest.mark.fault(
    without=(
        "evicting servers vote",
        "a live link is never inspected",
        "evicted keys are forgotten",
    )
)
@pytest.mark.parametrize("name", VARIANTS[1:])
@pytest.mark.usefixtures("often_inspected")
def test_a_master_that_has_evicted_keys_is_not_counted_when_its_policy_is_back(
    name: str, masters: list[LocalMaster]
) -> None:
    with trusted(name, masters[:3], restart_delay=3.0) as variant:
        lease = variant.acquire("order:1")
        variant.settle()
        with masters[0].client() as client:
            client.config_set("maxmemory-policy", "volatile-ttl")
            client.config_set("maxmemory", "1")
            with pytest.raises(OutOfMemoryError):
                client.set("any", "key")
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")
            assert not client.exists("redlock:lock:order:1")
            assert client.get("redlock:master"), "what has no TTL is still there"
        until(lambda: is_doubted(variant, 0), "the evictions are noticed")
        variant.release(lease)


@pytest.mark.fault(
    without=(
        "evicting servers vote",
        "a live link is never inspected",
        "evicted keys are forgotten",
    )
)
@pytest.mark.parametrize(
    ("odd", "word", "said"),
    [
        (
            replica,
            "replica",
            "is a replica of 127.0.0.1:{port}: MASTERS must lead to that master instead",
        ),
        (
            evicting,
            "eviction",
            "may evict locks (maxmemory-policy allkeys-lru): set maxmemory-policy to noeviction",
        ),
    ],
)
def test_a_fault_that_is_tolerated_is_a_warning(
    masters: list[LocalMaster],
    odd: Callable[[LocalMaster, LocalMaster], None],
    word: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(masters[0].client())
        # Only a replica that accepts writes can grant locks.
        client.config_set("replica-read-only", "no")
        stack.callback(client.config_set, "replica-read-only", "yes")
        odd(masters[0], masters[4])
        if word == "replica":
            with masters[4].client() as source:
                source.config_set("repl-diskless-sync-delay", "0")
            until(lambda: client.info()["master_link_status"] == "up", "the replica is in step")
        backend = make_backend([masters[0].url], tolerate=frozenset({word}))
        variant = stack.enter_context(open_variant("threads", backend))
        assert variant.release(variant.acquire("order:1")) is True
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    said = said.format(port=masters[4].port)
    assert f"redlock master {backend.addresses[0].name} {said}" in warnings
