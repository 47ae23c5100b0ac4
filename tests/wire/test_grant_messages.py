"""Messages of releases that grant a lock to a waiter of these links: which of them are votes."""

from __future__ import annotations

from dataclasses import replace

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.attempt import Attempt
from redlock_django.engine.protocol.statuses import REFUSED
from redlock_django.engine.quorum import WON
from redlock_django.engine.steps import Offer, Pause, proof_of_grant
from redlock_django.wire.link.link import Exchange, wake_none
from redlock_django.wire.links.waiter import Waiter
from tests.wire.manual_links import TOKEN, ManualLinks
from tests.wire.scripted import push, resp
from tests.wire.test_plain_rounds import timed_links

RIVAL = b"b" * 32


def _begun(links: ManualLinks) -> tuple[Waiter, Attempt]:
    """Return a waiter, and its attempt, which is not sent yet."""
    waiter = links.waiters.new()
    ask = replace(links.acquire(), waiter=waiter.name, ticket=1)
    return waiter, Attempt(ask, links.time())


def _sent(links: ManualLinks, attempt: Attempt) -> Exchange:
    exchange = links.outbox.exchange(attempt, wake_none)
    links.outbox.begin(exchange)
    links.outbox.flush()
    return exchange


def _refuse(links: ManualLinks, exchange: Exchange) -> None:
    """Queue the waiter on every master, as first one behind a holder."""
    for index in range(3):
        now = links.time.wall
        links.say(index, resp([exchange.number, REFUSED, now, 1, 9000, 7, RIVAL, 0]))


def _rest(links: ManualLinks, waiter: Waiter, attempt: Attempt) -> Attempt:
    """Begin the pause of a waiter; return its attempt as releases may grant it."""
    offered = attempt.offered()
    assert offered is not None
    offer = Offer(offered, attempt.tally, TOKEN, attempt.started)
    links.waiters.begin_pause(waiter, Pause(60.0, offer=offer))
    return offered


def _grant(links: ManualLinks, waiter: Waiter, index: int) -> None:
    """Publish that a release has set the lock for a waiter."""
    trust = links.masters[index].trust
    assert trust is not None
    proof = proof_of_grant(TOKEN.encode(), trust.marker).decode()
    message = f"{waiter.name}={proof} {links.time.wall} 8"
    links.say(index, push(b"message", links.waiters.channel.encode(), message.encode()))


def test_the_messages_of_a_majority_decide_an_offer() -> None:
    with timed_links(True) as (links, _):
        waiter, attempt = _begun(links)
        _refuse(links, _sent(links, attempt))
        offered = _rest(links, waiter, attempt)
        _grant(links, waiter, 0)
        assert not waiter.decided
        _grant(links, waiter, 2)
        assert offered.tally.verdict is WON
        assert waiter.takes_verdict(offered)


def test_no_grant_counts_while_another_copy_of_its_round_is_under_way() -> None:
    """An interrupt may send a round twice: the links undo what the second copy grants too late."""
    with timed_links(True) as (links, _):
        waiter, attempt = _begun(links)
        first, second = _sent(links, attempt), _sent(links, attempt)
        _refuse(links, first)
        second.abandon()
        offered = _rest(links, waiter, attempt)
        for ends in links.ends:
            ends.heard()
        for index in range(3):
            _grant(links, waiter, index)
            links.reply(index, second.number)
        assert [ends.names() for ends in links.ends] == [["release"]] * 3
        assert offered.tally.verdict is not WON


def test_a_waiter_asks_soon_if_a_grant_cannot_be_counted() -> None:
    with timed_links(True) as (links, _):
        waiter, attempt = _begun(links)
        _refuse(links, _sent(links, attempt))
        links.waiters.begin_pause(waiter, Pause(60.0))
        asks_at = waiter.until
        _grant(links, waiter, 1)
        assert waiter.until < asks_at


def test_an_offer_lasts_as_long_as_the_lock_that_is_set_by_it() -> None:
    with timed_links(True) as (links, _):
        _, attempt = _begun(links)
        master = MemoryMaster(lambda: links.time.wall)
        master.keyspace.publish = lambda channel, message: 1
        master.keyspace.set(links.deployment.marker, b"marker")
        held = replace(links.acquire("b" * 32), ttl=1.0)
        for command in (held, attempt.ask):
            master.eval("acquire", command.keys(), [1, *command.arguments(), "marker", 0])
        release = links.release("b" * 32)
        master.eval("release", release.keys(), [1, *release.arguments()])
        lock = master.keyspace.strings[links.deployment.lock("r")]
        assert lock[0] == attempt.ask.value.encode()
        assert master.keyspace.ends[links.deployment.offers("r")] > lock[1]
