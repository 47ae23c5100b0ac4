"""Locks that are handed on while a minority of the masters is down, cut off or far away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.engine.errors import QuorumUnreachable, TicketUsed
from redlock_django.engine.validity import LeaseState, RedlockLease
from tests.waiting import until
from tests.wire.proxy import FaultProxy, behind
from tests.wire.variants import (
    HOLDER,
    PATIENT,
    VARIANTS,
    Variant,
    joined,
    make_backend,
    open_variant,
)

if TYPE_CHECKING:
    from redlock_django.engine.validity import Lease
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

TTL = 60.0
"""No lock ends while its test runs: there, rounds wait for masters that do not answer."""

names = pytest.mark.parametrize("name", VARIANTS)


@dataclass
class Client:
    """A process with links of its own, each of them through a proxy."""

    variant: Variant
    proxies: list[FaultProxy]

    def acquire(self, *resources: str, limit: int = 1) -> RedlockLease:
        # Shorter than a hand-on, which must not prolong it if it fails.
        return self.variant.acquire(*resources, ttl=TTL - 10, wait=5.0, limit=limit)

    def hand_on(self, lease: RedlockLease) -> Lease:
        return self.variant.acquire(*lease.names, ttl=TTL, limit=lease.limit, given=lease)

    def resume(self, handed: Lease) -> RedlockLease:
        ticket = replace(handed, home=None)
        return self.variant.acquire(*ticket.names, ttl=TTL, limit=ticket.limit, given=ticket)

    def cut(self, *indexes: int) -> None:
        """Cut the client off from these masters."""
        for index in indexes:
            self.proxies[index].refuse()
        links, sockets = self.variant.links, self.variant.driver.sockets
        gone = [links.masters[index] for index in indexes]

        def is_noticed() -> bool:
            sockets.read(gone)
            sockets.flush()
            return all(master.link is None for master in gone)

        until(lambda: self.variant.inside(is_noticed), "the links are lost")

    def lose(self, *indexes: int, how: str) -> None:
        """Lose all that is sent to these masters: the client does not know of it before it asks."""
        for index in indexes:
            if how == "reset":
                self.proxies[index].forget()
            else:
                self.proxies[index].delay_up = 60.0

    def join(self, *indexes: int) -> None:
        """Reach these masters again, after all that was kept for them was sent."""
        self.cut(*indexes)
        for index in indexes:
            self.proxies[index].delay_up = 0.0
            self.proxies[index].accept()
        links, sockets = self.variant.links, self.variant.driver.sockets

        def are_alive() -> bool:
            # A link may have been made just before its connection was cut.
            sockets.read(links.masters)
            sockets.flush()
            return links.link_wait.usable() == len(self.proxies)

        until(lambda: self.variant.inside(are_alive), "all masters are reached")
        self.variant.settle()


@contextmanager
def clients(
    name: str, masters: Sequence[LocalMaster], many: int, **settings: Any
) -> Iterator[list[Client]]:
    """Yield so many clients of these masters, with all their links."""
    settings = {**PATIENT, "max_ttl": TTL, **settings}
    with ExitStack() as stack:
        made = []
        for _ in range(many):
            proxies = stack.enter_context(behind(masters))
            backend = make_backend([proxy.url for proxy in proxies], members="same", **settings)
            variant = stack.enter_context(open_variant(name, backend))
            variant.start()
            variant.wait_usable(len(masters))
            variant.settle()
            made.append(Client(variant, proxies))
        yield made


def taken_by_one(handed: Lease, takers: Sequence[Client]) -> tuple[Client, RedlockLease]:
    """Make all take it at the same moment; return the one that holds it, and its lease."""
    start = Barrier(len(takers))

    def take(taker: Client) -> RedlockLease | None:
        start.wait()
        try:
            return taker.resume(handed)
        except QuorumUnreachable:  # "try again"
            try:
                return taker.resume(handed)
            except TicketUsed:
                return None
        except TicketUsed:
            return None

    with ThreadPoolExecutor(len(takers)) as pool:
        leases = list(pool.map(take, takers))
    ((taker, lease),) = [
        (taker, lease) for taker, lease in zip(takers, leases, strict=True) if lease is not None
    ]
    return taker, lease


@names
@pytest.mark.parametrize(
    ("down", "n", "many", "resources", "limit"),
    [
        (1, 3, 2, ("order:1",), 1),
        (2, 5, 3, ("order:1",), 1),
        (1, 3, 3, ("order:1", "order:2"), 1),
        (1, 3, 2, ("export",), 2),
    ],
)
def test_of_several_takers_one_holds_with_a_minority_down(
    name: str, down: int, n: int, many: int, resources: tuple[str, ...], limit: int,
    masters: list[LocalMaster],
) -> None:  # fmt: skip
    with clients(name, masters[:n], many) as made:
        for client in made:
            client.cut(*range(n - down, n))
        for _ in range(8):
            given = made[0].acquire(*resources, limit=limit)
            taker, lease = taken_by_one(made[0].hand_on(given), made)
            assert lease.resources == given.resources
            assert taker.variant.extend(lease, TTL)[0] is LeaseState.RENEWED
            assert taker.variant.release(lease) is True


@pytest.mark.slow
@names
@pytest.mark.parametrize("how", ["reset", "hang", "hang, and the third loses its reply"])
def test_a_taker_that_was_cut_off_takes_the_lock_when_another_master_is_down(
    name: str, how: str, masters: list[LocalMaster]
) -> None:
    """It had replaced the token on the only master that it reached."""
    with clients(name, masters[:3], 2, master_timeout=1.0) as (giver, taker):
        handed = giver.hand_on(giver.acquire("order:1"))
        taker.lose(1, 2, how=how)
        taker.proxies[0].lose_replies = "reply" in how
        with pytest.raises(QuorumUnreachable):
            taker.resume(handed)
        taker.proxies[0].lose_replies = False
        taker.join(1, 2)
        taker.cut(1)
        lease = taker.resume(handed)
        assert taker.variant.release(lease) is True


@pytest.mark.slow
@names
@pytest.mark.parametrize("how", ["reset", "hang", "hang, and the third loses its reply"])
def test_a_hand_on_that_failed_leaves_the_lock_as_it_was(
    name: str, how: str, masters: list[LocalMaster]
) -> None:
    """The giver had replaced its token on the only master that it reached."""
    with clients(name, masters[:3], 1, master_timeout=1.0) as (giver,):
        lease = giver.acquire("order:1")
        giver.variant.settle()  # the other two masters may have granted it first
        before = _value(masters[0])
        giver.lose(1, 2, how=how)
        giver.proxies[0].lose_replies = "reply" in how
        with pytest.raises(QuorumUnreachable):
            giver.hand_on(lease)
        giver.proxies[0].lose_replies = False
        giver.join(1, 2)
        until(lambda: _value(masters[0])[0] == before[0], "its own token is back")
        left = _value(masters[0])[1]
        assert left <= before[1], "the lock ends when it would have ended"
        giver.cut(1)
        state, lease = giver.variant.extend(lease, TTL)
        assert state is LeaseState.RENEWED
        taken = giver.resume(giver.hand_on(lease))
        assert giver.variant.release(taken) is True


def _value(master: LocalMaster) -> tuple[bytes, int]:
    """Return the value of the lock of order:1, and the ms that it has left."""
    with master.client() as client:
        return client.get("redlock:lock:order:1"), client.pttl("redlock:lock:order:1")


def test_a_lock_of_a_loop_that_has_ended_is_buried_when_it_is_handed_on(
    masters: list[LocalMaster],
) -> None:
    with joined("threads", masters[:3]) as threads:
        with open_variant("loop", threads.backend) as loop:
            loop.start()
            loop.wait_usable(3)
            held = loop.acquire("order:1")
            loop.settle()
        tombstone = f"redlock:tomb:{held.token}"
        with masters[2].client() as client:
            client.delete("redlock:lock:order:1")  # as if the acquire were still on its way
            threads.backend.acquire(held.names, 30, 0.0, HOLDER, 1, held)
            threads.backend.post_release(held)  # as `Handing.ticket` does
            threads.settle()
            until(lambda: client.exists(tombstone), "the token cannot be set any more")
