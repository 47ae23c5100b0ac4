"""PROFILE "failover": one address, behind which a replica takes the place of the primary."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from redlock_django.wire.servers import probe
from redlock_django.wire.servers.info import read_info
from tests import inspecting
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.wire.variants import (
    PATIENT,
    Variant,
    both,
    make_backend,
    open_variant,
    trust,
    trusted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


LONG: dict[str, Any] = {"failover": True, "max_ttl": 60.0, "restart_delay": 63.8, **PATIENT}
TTL = 50.0


class Pair:
    """A primary, its replica, and the address that leads to the primary."""

    def __init__(self, primary: LocalMaster, replica: LocalMaster, address: FaultProxy) -> None:
        self.primary = primary
        self.replica = replica
        self.address = address

    def replicate(self) -> None:
        """Make the replica take all that the primary has."""
        with self.primary.client() as primary, self.replica.client() as replica:
            primary.config_set("repl-diskless-sync-delay", 0)
            replica.replicaof("127.0.0.1", str(self.primary.port))
            until(lambda: replica.info()["master_link_status"] == "up", "in step", seconds=60)

    def part(self) -> None:
        """Wait until the replica has all, and cut it off: it receives nothing from here on."""
        with self.primary.client() as primary, self.replica.client() as replica:
            assert primary.wait(1, 30_000) == 1
            replica.replicaof("127.0.0.1", "1")

    def promote(self) -> None:
        """Make the replica a primary."""
        with self.replica.client() as replica:
            replica.replicaof("NO", "ONE")


@pytest.fixture
def pair(masters: list[LocalMaster]) -> Iterator[Pair]:
    with FaultProxy(masters[0].port) as address:
        pair = Pair(masters[0], masters[1], address)
        pair.replicate()
        yield pair


def client(name: str, pair: Pair) -> AbstractContextManager[Variant]:
    """Return a client of the pair's address, as a process that starts now has one."""
    return open_variant(name, make_backend([pair.address.url], **LONG))


def trusting(name: str, pair: Pair, **settings: Any) -> AbstractContextManager[Variant]:
    """Return the same, after the primary was declared trusted."""
    return trusted(name, [pair.primary], urls=[pair.address.url], **{**LONG, **settings})


def refuses(variant: Variant, why: str) -> bool:
    """Return whether a free lock is refused, in the end for the reason `why`."""
    with pytest.raises(QuorumUnreachable) as refused:
        variant.acquire("free")
    return why in str(refused.value)


@pytest.mark.fault
@both
def test_a_promoted_replica_grants_nothing_and_a_holder_whose_lock_is_there_goes_on(
    name: str, pair: Pair
) -> None:
    with trusting(name, pair) as old, ExitStack() as later:
        kept = old.acquire("kept", ttl=TTL)
        pair.part()
        forgotten = old.acquire("forgotten", ttl=TTL)
        pair.primary.kill()
        pair.promote()
        pair.address.lead_to(pair.replica.port)
        until(lambda: refuses(old, "restarted: trusted in 6"), "the failover is noticed")
        state, kept = old.extend(kept, ttl=TTL)
        assert state is LeaseState.RENEWED
        state, _ = old.extend(forgotten, ttl=TTL)
        assert state is LeaseState.LOST
        assert old.release(kept) is True
        young = later.enter_context(client(name, pair))
        until(lambda: refuses(young, "trusted in"), "a process that starts after it refuses, too")
        with pytest.raises(QuorumUnreachable):
            young.acquire("forgotten")


@pytest.mark.slow
@both
def test_a_promoted_replica_grants_again_once_all_forgotten_locks_have_expired(
    name: str, pair: Pair
) -> None:
    with trusting(name, pair, max_ttl=2.0, restart_delay=2.6, max_clock_skew=0.1) as old:
        pair.part()
        forgotten = old.acquire("forgotten", ttl=2.0, wait=60.0)
        pair.primary.kill()
        pair.promote()
        pair.address.lead_to(pair.replica.port)
        taken = old.acquire("forgotten", ttl=2.0, wait=60.0)
        assert old.backend.clock() >= forgotten.until
        assert taken.fences > forgotten.fences


@pytest.mark.fault
@pytest.mark.parametrize(("name", "guarded"), [("threads", True), ("loop", True), ("loop", False)])
def test_a_proxy_that_leads_live_links_to_the_promoted_replica(
    name: str, guarded: bool, pair: Pair
) -> None:
    with trusting(name, pair, failover=guarded) as variant:
        pair.part()
        held = variant.acquire("forgotten", ttl=TTL)
        variant.settle()
        pair.promote()
        link = variant.links.masters[0].link
        pair.address.switch(pair.replica.port)
        if not guarded:
            variant.acquire("forgotten", ttl=TTL)  # two hold it: INFO is not asked for yet
            return
        with pytest.raises(QuorumUnreachable):
            variant.acquire("forgotten", ttl=TTL)
        assert link is not None
        until(lambda: refuses(variant, "restarted: trusted in"), "it is another server")
        assert variant.extend(held)[0] is LeaseState.LOST


@both
def test_a_failover_over_tls_with_a_password(name: str, pair: Pair, authority: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "master.pem", authority / "master.key")
    options = {"password": "canary", "ssl_ca_certs": str(authority / "ca.pem")}
    with (
        FaultProxy(pair.primary.port, tls=context) as address,
        pair.primary.client() as primary,
        pair.replica.client() as replica,
        ExitStack() as after,
    ):
        backend = make_backend([address.url], options=options, **LONG)
        trust(pair.primary, backend.deployment)
        for server in (primary, replica):  # connections that are open need no password
            server.config_set("requirepass", "canary")
            after.callback(server.config_set, "requirepass", "")
        with open_variant(name, backend) as variant:
            variant.start()
            kept = variant.acquire("kept", ttl=TTL)
            assert primary.wait(1, 30_000) == 1
            replica.replicaof("NO", "ONE")
            address.lead_to(pair.replica.port)
            until(lambda: refuses(variant, "restarted: trusted in"), "the failover is noticed")
            assert variant.extend(kept, ttl=TTL)[0] is LeaseState.RENEWED


def test_a_primary_that_is_demoted_grants_nothing_on_live_links(pair: Pair) -> None:
    with trusting("threads", pair) as variant:
        pair.part()
        pair.promote()
        with pair.primary.client() as primary:
            primary.replicaof("127.0.0.1", str(pair.replica.port))
        with pytest.raises(QuorumUnreachable):
            variant.acquire("order:1")
        until(lambda: refuses(variant, "is a replica of"), "the replica is named")
        pair.address.lead_to(pair.replica.port)
        until(lambda: refuses(variant, "restarted: trusted in"), "the new primary is found")


def test_a_former_primary_that_needs_a_replica_grants_nothing(pair: Pair) -> None:
    """Split brain: the former primary is cut off, and with it some clients."""
    with trusting("threads", pair) as cut_off, pair.primary.client() as primary:
        (health,) = inspecting.health(cut_off.backend)
        assert [fault.code for fault in health.faults] == ["alone"]
        assert health.counted
        primary.config_set("min-replicas-to-write", 1)
        try:
            (health,) = inspecting.health(cut_off.backend)
            assert health.faults == ()
            assert cut_off.release(cut_off.acquire("order:1"))
            pair.part()
            until(lambda: refuses(cut_off, "answered NOREPLICAS"), "it refuses writes")
        finally:
            primary.config_set("min-replicas-to-write", 0)


@pytest.mark.nightly
def test_a_promoted_primary_without_a_replica_takes_another_replication_id(pair: Pair) -> None:
    with (
        trusting("threads", pair) as variant,
        pair.replica.client() as promoted,
        ExitStack() as after,
    ):
        pair.part()
        pair.promote()
        pair.address.lead_to(pair.replica.port)
        until(lambda: refuses(variant, "restarted: trusted in"), "the failover is noticed")
        trust(pair.replica, variant.backend.deployment)
        held = variant.acquire("held", ttl=TTL, wait=60.0)
        before = promoted.info()["master_replid"]
        after.callback(promoted.config_set, "repl-backlog-ttl", 3600)
        promoted.config_set("repl-backlog-ttl", 1)
        until(lambda: promoted.info()["master_replid"] != before, "it has another one", seconds=60)

        def is_refused() -> bool:
            try:
                variant.release(variant.acquire("free"))
            except QuorumUnreachable as error:
                return "restarted: trusted in" in str(error)
            return False

        until(is_refused, "that is noticed", seconds=60)
        assert variant.extend(held, ttl=TTL)[0] is LeaseState.RENEWED


@pytest.mark.parametrize("keeps", [True, False], ids=["with-data", "without-data"])
def test_a_primary_that_restarts(keeps: bool) -> None:
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    with (
        local_masters(1, args=durable) as (primary,),
        trusted("threads", [primary], **LONG) as variant,
    ):
        held = variant.acquire("held", ttl=TTL)
        primary.kill()
        if not keeps:
            for file in (primary.directory / "appendonlydir").iterdir():
                file.unlink()
        primary.start()
        until(lambda: refuses(variant, "trusted in"), "it may have forgotten locks")
        state, _ = variant.extend(held, ttl=TTL)
        assert state is (LeaseState.RENEWED if keeps else LeaseState.LOST)


def test_a_proxy_that_hides_the_role_is_named(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(answer: bytes) -> dict[str, str]:
        return {key: value for key, value in read_info(answer).items() if key != "role"}

    monkeypatch.setattr(probe, "read_info", without)
    backend = make_backend([masters[0].url], **LONG)
    with open_variant("threads", backend) as variant:
        assert refuses(variant, "reports no role in INFO, without which no failover is noticed")
    assert "run_id" in {f.code for one in inspecting.health(backend) for f in one.faults}


def test_a_proxy_that_hides_info_is_named() -> None:
    with local_masters(1, args=["--rename-command", "INFO", ""]) as (primary,):
        backend = make_backend([primary.url], **LONG)
        with open_variant("threads", backend) as variant:
            assert refuses(variant, "refuses INFO, without which no restart and no failover")
        (health,) = inspecting.health(backend)
        assert "use no proxy that hides it" in health.reason
