"""Network faults with real masters: no answer, late or repeated commands, split views."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import hiredis
import pytest

from redlock_django.engine import quorum
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.commands import Reply, decode
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.validity import LeaseState, RedlockLease
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.sockets import LinkSocket
from tests.live.left_over import granted, locked
from tests.live.removed_rules import guards_both
from tests.live.traffic import left
from tests.ports import free_port
from tests.replies import unpacked
from tests.waiting import until
from tests.wire.proxy import behind
from tests.wire.variants import (
    SOON,
    VARIANTS,
    Variant,
    both,
    joined,
    make_backend,
    open_variant,
    sharing,
    trust,
)

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


@contextmanager
def black_hole() -> Iterator[str]:
    """Return the URL of a port that neither accepts nor refuses connections."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(
            3
        ):  # these fill the queue of the listener, so that later connections get no answer
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_proxy_that_refuses_connections_keeps_its_port(masters: list[LocalMaster]) -> None:
    with behind(masters[:1]) as [proxy]:
        proxy.refuse()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", proxy.port))
        proxy.accept()


@pytest.mark.fault(without=("connecting masters are always waited for",))
@both
def test_masters_that_never_take_a_connection_are_not_waited_for(
    name: str, masters: list[LocalMaster]
) -> None:
    with ExitStack() as stack, ExitStack() as holes:
        urls = [holes.enter_context(black_hole()) for _ in range(2)]
        urls += [master.url for master in masters[:3]]
        backend = make_backend(urls, connect_timeout=10.0)
        for master in masters[:3]:
            trust(master, backend.deployment)
        variant = stack.enter_context(open_variant(name, backend))
        lease = variant.acquire("order:1")
        # The attempts to connect to them have not even timed out.
        assert [m.reason for m in variant.links.masters[:2]] == ["connecting"] * 2
        assert variant.release(lease) is True
        holes.close()  # refuses the attempts that are still connecting


@pytest.mark.fault
@guards_both
def test_masters_that_are_all_slower_than_the_ttl(
    name: str, guarded: bool, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every grant arrives after its lock has expired. Only the clock check refuses the lock."""
    if not guarded:
        monkeypatch.setattr(
            "redlock_django.engine.attempt.valid_until", lambda ttl, started: math.inf
        )
    with behind(masters[:3]) as proxies, ThreadPoolExecutor(1) as pool:
        urls = [proxy.url for proxy in proxies]
        with joined(name, masters[:3], urls=urls, master_timeout=8.0) as variant:
            for proxy in proxies:
                proxy.hold()
            taker = pool.submit(variant.acquire, "order:1", ttl=0.3)
            until(lambda: granted(masters[:3], "order:1"), "all masters have granted the lock")
            until(lambda: not locked(masters[:3]), "all locks have expired")
            for proxy in proxies:
                proxy.let_go()
            if guarded:
                with pytest.raises(NotAcquired):
                    taker.result(60)
            else:
                assert taker.result(60).until == math.inf


@contextmanager
def recorded_commands(variant: Variant) -> Iterator[dict[int, bytes]]:
    """Record the last bytes that are sent to each port while the block runs, and send no INFO."""
    for master in variant.links.masters:
        master.inspect_at = math.inf
    sent: dict[int, bytes] = {}
    send = LinkSocket.send

    def record(connection: LinkSocket, out: bytearray) -> bool:
        if out:
            sent[connection.socket.getpeername()[1]] = bytes(out)
        return send(connection, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkSocket, "send", record)
        yield sent


@pytest.mark.fault(without=("a resend is a new grant",))
@both
def test_a_repeated_acquire_command_is_the_same_grant(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        with recorded_commands(variant) as sent:
            lease = variant.acquire("order:1")
            variant.settle()
        assert len(sent) == 3
        for master in masters[:3]:
            with master.client() as client:
                before = client.get("redlock:fence:order:1"), client.get("redlock:lock:order:1")
                again = repeat(master, sent[master.port])
                assert unpacked(again)[2:] == [int(before[0] or b"")]
                after = client.get("redlock:fence:order:1"), client.get("redlock:lock:order:1")
                assert after == before
        assert variant.release(lease) is True
        variant.settle()
        assert not left(masters[:3])


@pytest.mark.slow
@pytest.mark.fault(without=("acquire ignores tombstones",))
@pytest.mark.parametrize("name", VARIANTS[:1])
def test_an_acquire_that_arrives_after_its_release_finds_the_tombstone(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3], **SOON) as variant:
        masters[2].pause()
        with recorded_commands(variant) as sent:
            lease = variant.acquire("order:1")
            variant.wait_gone(2)
        masters[2].resume()
        assert variant.release(lease) is True
        variant.wait_usable(3)
        variant.settle()
        assert repeat(masters[2], sent[masters[2].port]).status == Status.BURIED
        assert not left(masters[:3])


def repeat(master: LocalMaster, command: bytes) -> Reply:
    """Send these bytes over another connection, and return the reply."""
    parser = hiredis.Reader()
    with closing(socket.create_connection(("127.0.0.1", master.port), 5)) as other:
        other.sendall(command)
        while (answer := parser.gets()) is False:
            parser.feed(other.recv(65536))
    return decode(answer)


@pytest.mark.fault
@guards_both
def test_two_clients_that_see_different_masters(
    name: str, guarded: bool, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaches masters 1 to 3, B 3 to 5. With a quorum of two, both would hold the lock."""
    if not guarded:
        half = (lambda masters: masters // 2).__code__
        monkeypatch.setattr(quorum.quorum, "__code__", half)  # also for those that imported it
    direct = [master.url for master in masters]
    cut = [f"redis://127.0.0.1:{free_port()}/0" for _ in masters]
    seen = direct[:3] + cut[3:], cut[:2] + direct[2:]
    with sharing(name, masters, *seen) as (a, b), ThreadPoolExecutor(2) as pool:
        for variant in (a, b):
            variant.start()
            variant.wait_usable(3)
        for turn in range(4):
            races = [pool.submit(attempt, variant, f"order:{turn}") for variant in (a, b)]
            held = [lease for race in races if (lease := race.result(60)) is not None]
            assert len(held) <= 1 if guarded else len(held) == 2


def attempt(variant: Variant, resource: str) -> RedlockLease | None:
    try:
        return variant.acquire(resource)
    except NotAcquired:
        return None


@pytest.mark.fault
@pytest.mark.parametrize(
    ("name", "delay", "ttl"),
    [("threads", 0.9, 0.7), ("loop", 0.9, 0.7), ("loop", 0.0, 60.0)],
    ids=["guarded-threads", "guarded-loop", "unguarded"],
)
def test_a_failover_behind_one_address(
    name: str, delay: float, ttl: float, masters: list[LocalMaster]
) -> None:
    """A holds masters 1 and 3; a replica that does not have the lock replaces master 3."""
    promoted = masters[3]
    with ExitStack() as stack:
        (proxy, away) = stack.enter_context(behind([masters[2], masters[1]]))
        away.refuse()
        deployment = {
            "restart_delay": delay,
            "max_ttl": ttl,
            "max_clock_skew": 0.1,
            "members": "allthree",
        }
        urls = [masters[0].url, masters[1].url, proxy.url]
        backend = make_backend(urls, **deployment)  # type: ignore[arg-type]
        for master in masters[:3]:
            trust(master, backend.deployment)
        partial = make_backend([urls[0], away.url, urls[2]], **deployment)  # type: ignore[arg-type]
        a = stack.enter_context(open_variant(name, partial))
        b = stack.enter_context(joined(name, masters[:3], urls=urls, **deployment))
        a.start()
        with masters[2].client() as client, promoted.client() as replica:
            replica.set("redlock:master", client.get("redlock:master") or b"")
        held = a.acquire("order:1", ttl=ttl, wait=60.0)
        a.settle()
        proxy.lead_to(promoted.port)
        taken = b.acquire("order:1", ttl=ttl, wait=60.0)
        if delay:
            assert clock() >= held.until
            assert taken.fences > held.fences
        else:
            assert clock() < held.until
        b.release(taken)


@pytest.mark.fault(without=("a lost link stays lost",))
@both
def test_a_link_that_is_killed_by_its_server_loses_no_lock(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3], max_ttl=60.0) as variant:
        lease = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        for master in masters[:3]:
            with master.client() as client:
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)
        states = []

        def renewed() -> bool:
            state, _ = variant.extend(lease, ttl=60.0)
            states.append(state)
            return state is LeaseState.RENEWED

        until(renewed, "the lock is extended on new links")
        assert LeaseState.LOST not in states
        assert not variant.backend.voided(lease)
        variant.wait_usable(3)
        assert variant.release(lease) is True
