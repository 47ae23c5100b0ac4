"""Connections that break in ways the other tests do not have, between us and real masters."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import hiredis
import pytest

from redlock_django.engine import quorum, rounds
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.statuses import BURIED
from redlock_django.engine.validity import LeaseState, RedlockLease
from redlock_django.wire.clock import clock
from redlock_django.wire.link import Link
from tests.live.left_over import granted, locked
from tests.live.removed_rules import guards
from tests.live.traffic import Traffic, all_freed, left
from tests.ports import free_port
from tests.waiting import until
from tests.wire.proxy import behind
from tests.wire.variants import VARIANTS, Variant, joined, make_backend, open_variant, trust

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

both = pytest.mark.parametrize("name", VARIANTS)


@contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a port where nobody takes a connection, and nobody refuses one."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # as many as wait to be taken; whoever comes after them is not heard
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@both
def test_masters_that_never_take_a_connection_are_not_waited_for(
    name: str, masters: list[LocalMaster]
) -> None:
    with ExitStack() as stack, ExitStack() as holes:
        urls = [holes.enter_context(black_hole()) for _ in range(2)]
        urls += [master.url for master in masters[:3]]
        backend = make_backend(urls, connect_timeout=10.0)
        variant = stack.enter_context(open_variant(name, backend))
        lease = variant.acquire("order:1")
        # Whoever dials them has not even given up.
        assert [m.reason for m in variant.links.masters[:2]] == ["connecting"] * 2
        assert variant.release(lease) is True
        holes.close()  # who still dials is refused


@both
@guards
def test_masters_that_are_all_slower_than_the_ttl(
    name: str, guarded: bool, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every grant comes when its lock is over. Without a look at the clock it would be held."""
    if not guarded:
        monkeypatch.setattr(rounds, "valid_until", lambda ttl, started: math.inf)
    with behind(masters[:3]) as proxies, ThreadPoolExecutor(1) as pool:
        urls = [proxy.url for proxy in proxies]
        with joined(name, masters[:3], urls=urls, master_timeout=8.0) as variant:
            for proxy in proxies:
                proxy.hold()
            taker = pool.submit(variant.acquire, "order:1", ttl=0.3)
            until(lambda: granted(masters[:3], "order:1"), "all have granted")
            until(lambda: not locked(masters[:3]), "all locks are over")
            for proxy in proxies:
                proxy.let_go()
            if guarded:
                with pytest.raises(NotAcquired):
                    taker.result(10)
            else:
                assert taker.result(10).until == math.inf


@contextmanager
def listening() -> Iterator[dict[int, bytes]]:
    """What is said to each port last, while this lasts."""
    said: dict[int, bytes] = {}
    send = Link.send

    def listen(link: Link) -> None:
        if link.out:
            said[link.socket.getpeername()[1]] = bytes(link.out)
        send(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "send", listen)
        yield said


@both
def test_the_same_words_said_again_are_the_same_grant(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        with listening() as said:
            lease = variant.acquire("order:1")
            variant.settle()
        assert len(said) == 3
        for master in masters[:3]:
            with master.client() as client:
                before = client.get("redlock:fence:order:1"), client.get("redlock:lock:order:1")
                assert again(master, said[master.port])[3:] == [int(before[0] or b"")]
                after = client.get("redlock:fence:order:1"), client.get("redlock:lock:order:1")
                assert after == before
        assert variant.release(lease) is True
        assert not left(masters[:3])


@both
def test_an_acquire_that_comes_behind_its_release_finds_the_tombstone(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3], master_timeout=0.5) as variant:
        masters[2].pause()
        with listening() as said:
            lease = variant.acquire("order:1")
            variant.wait_gone(2)
        masters[2].resume()
        assert variant.release(lease) is True
        variant.wait_usable(3)
        variant.settle()
        status, *_ = again(masters[2], said[masters[2].port])[1:]
        assert status == BURIED
        assert not left(masters[:3])


def again(master: LocalMaster, words: bytes) -> list[int]:
    """The answer to these bytes on another connection."""
    parser = hiredis.Reader()
    with closing(socket.create_connection(("127.0.0.1", master.port), 5)) as other:
        other.sendall(words)
        while (answer := parser.gets()) is False:
            parser.feed(other.recv(65536))
    assert isinstance(answer, list)
    return answer


@both
@guards
def test_two_clients_that_see_different_masters(
    name: str, guarded: bool, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sees masters 1 to 3, B sees 3 to 5. With a quorum of two, both would hold it."""
    if not guarded:
        monkeypatch.setattr(quorum, "quorum", lambda masters: masters // 2)
    direct = [master.url for master in masters]
    cut = [f"redis://127.0.0.1:{free_port()}/0" for _ in masters]
    with ExitStack() as stack:
        a = stack.enter_context(open_variant(name, make_backend(direct[:3] + cut[3:])))
        b = stack.enter_context(open_variant(name, make_backend(cut[:2] + direct[2:])))
        for variant in (a, b):
            variant.start()
            variant.wait_usable(3)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for turn in range(4):
            races = [pool.submit(attempt, variant, f"order:{turn}") for variant in (a, b)]
            held = [lease for race in races if (lease := race.result(10)) is not None]
            assert len(held) <= 1 if guarded else len(held) == 2


def attempt(variant: Variant, resource: str) -> RedlockLease | None:
    try:
        return variant.acquire(resource)
    except NotAcquired:
        return None


def test_masters_that_come_and_go_in_any_order(masters: list[LocalMaster]) -> None:
    """Cut off one after the other, and put back in another order, until a majority is gone."""
    luck = random.Random(15)
    with behind(masters) as proxies, ExitStack() as stack:
        backend = make_backend([proxy.url for proxy in proxies])
        variants = [stack.enter_context(open_variant(name, backend)) for name in VARIANTS]
        with Traffic(variants, workers=4, resources=2) as traffic:
            traffic.wait_for_wins(10, "all is well")
            for _ in range(3):
                away = luck.sample(proxies, 2)
                for proxy in away:
                    proxy.refuse()
                traffic.wait_for_wins(5, "a minority is gone")
                a, b = luck.sample(variants, 2)
                held = a.acquire("order:held", ttl=8.0, wait=5.0)
                for proxy in away:
                    proxy.accept()
                b.wait_usable(5)
                with pytest.raises(NotAcquired):
                    b.acquire("order:held")
                assert a.release(held) is True
                for proxy in luck.sample(proxies, 5):
                    proxy.refuse()
                for proxy in luck.sample(proxies, 5):
                    proxy.accept()
                traffic.wait_for_wins(5, "all are back")
        assert traffic.trouble == []
        all_freed(variants, masters)


@both
@pytest.mark.parametrize(("delay", "ttl"), [(0.9, 0.7), (0.0, 6.0)], ids=["guarded", "unguarded"])
def test_a_failover_behind_one_address(
    name: str, delay: float, ttl: float, masters: list[LocalMaster]
) -> None:
    """A holds masters 1 and 3; a replica that had not heard of it takes the place of 3."""
    promoted = masters[3]
    with ExitStack() as stack:
        (proxy, away) = stack.enter_context(behind([masters[2], masters[1]]))
        away.refuse()
        deployment = {"restart_delay": delay, "max_ttl": ttl, "max_clock_skew": 0.1}
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
        held = a.acquire("order:1", ttl=ttl)
        a.settle()
        proxy.lead_to(promoted.port)
        taken = b.acquire("order:1", ttl=ttl, wait=5.0)
        if delay:
            assert clock() >= held.until
            assert taken.fences > held.fences
        else:
            assert clock() < held.until
        b.release(taken)


@both
def test_a_link_that_is_killed_by_its_server_loses_no_lock(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        lease = variant.acquire("order:1", ttl=8.0)
        variant.settle()
        for master in masters[:3]:
            with master.client() as client:
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)
        states = []

        def renewed() -> bool:
            state, _ = variant.extend(lease)
            states.append(state)
            return state is LeaseState.RENEWED

        until(renewed, "the lock is extended on new links")
        assert LeaseState.LOST not in states
        assert not variant.backend.voided(lease)
        variant.wait_usable(3)
        assert variant.release(lease) is True
