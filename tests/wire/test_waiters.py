"""Waiting over real and scripted masters: which waiter is called, who subscribes, what is left.

Tests of calls put the fallback out of reach: without the call they would not end in time.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from redis.connection import Connection

from redlock_django.engine import pauses
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.wire.links import waiters as wire_waiter
from redlock_django.wire.servers.handshake import speaks_resp3
from redlock_django.wire.servers.probe import Probe
from redlock_django.wire.servers.trust import NotUpYet
from tests.live.left_over import nothing_left
from tests.live.linked import has_sleepers
from tests.looking import looking_at, scripts_run
from tests.replies import packed
from tests.waiting import until
from tests.wire.scripted import Received, ScriptedMaster, honest, push, resp
from tests.wire.test_link import scripted
from tests.wire.variants import Variant, both, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from redlock_django.engine.validity import RedlockLease

pytestmark = pytest.mark.live

NEVER = 60.0
CALLED = 20.0
"""Seconds in which a waiter that is called has the lock; it asks by itself only after NEVER."""
LONG = {"max_ttl": 60.0}
"""For locks that do not expire meanwhile."""


def ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiters ask again only after a call."""
    for pause in ("FALLBACK", "CALM", "LONGEST", "CALM_LONGEST"):
        monkeypatch.setattr(pauses, pause, NEVER)
    monkeypatch.setattr(wire_waiter, "WATCH", NEVER)


no_fallback = pytest.fixture(ask_once, name="no_fallback")


def queued(masters: Sequence[LocalMaster], resource: str) -> list[int]:
    """Return how many waiters each master has."""
    found = []
    for master in masters:
        with master.client() as client:
            found.append(int(client.zcard(f"redlock:queue:{resource}")))
    return found


def wait_queued(masters: Sequence[LocalMaster], resource: str, waiters: int) -> None:
    until(
        lambda: queued(masters, resource) == [waiters] * len(masters),
        f"{waiters} wait for {resource}: {queued(masters, resource)}",
    )


@contextmanager
def waiting(variant: Variant, masters: Sequence[LocalMaster]) -> Iterator[Future[RedlockLease]]:
    """Yield the lease of a waiter for "order:1" that has read its refusals, in the future."""
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(variant.acquire, "order:1", ttl=50.0, wait=NEVER)
        wait_queued(masters, "order:1", 1)
        variant.settle()
        until(lambda: has_sleepers(variant.links), "the waiter sleeps")
        yield taker


@pytest.mark.fault(without=("a lost link goes unnoticed",))
@both
def test_a_waiter_whose_link_was_lost_asks_soon(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "CALM", NEVER)
    monkeypatch.setattr(pauses, "CALM_LONGEST", NEVER)
    with (
        joined(name, masters[:3], **LONG) as variant,
        joined("threads", masters[:3], **LONG) as holder,
    ):
        lease = holder.acquire("order:1", ttl=60.0)
        with waiting(variant, masters[:3]) as taker:
            for master in masters[:3]:
                with master.client() as client:
                    client.delete("redlock:queue:order:1")  # so that no master calls
            assert holder.release(lease) is True
            masters[0].kill()
            began = time.monotonic()
            variant.release(taker.result(60))
            assert time.monotonic() - began < 15.0, "it did not wait until its wait ended"


@pytest.mark.parametrize(
    ("answer", "speaks"),
    [
        (b"%1\r\n$5\r\nproto\r\n:3\r\n", True),
        (b"-ERR unknown command `HELLO`\r\n", False),
        (b"-NOPROTO unsupported protocol version\r\n", False),
        (b"-NOAUTH HELLO must be called with the client already authenticated\r\n", False),
        (b"*2\r\n$5\r\nproto\r\n:2\r\n", False),
    ],
)
def test_replies_to_hello(answer: bytes, speaks: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for index in range(len(answer)):
            theirs.sendall(answer[index : index + 1])
        probe = ConnectedProbe(ours)
        assert speaks_resp3(probe) is speaks
        assert theirs.recv(100) == b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"
        assert probe.take() is ours


def test_a_server_that_hangs_up_on_hello() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(NotUpYet, match="closed the connection"):
            speaks_resp3(ConnectedProbe(ours))
        theirs.close()


class ConnectedProbe(Probe):
    """A probe over a socket that is connected already."""

    def __init__(self, connected: socket.socket) -> None:
        self._timeout = 5.0
        self._connection = Connection(  # type: ignore[no-untyped-call]
            protocol=2, socket_timeout=self._timeout
        )
        self._connection._sock = connected
        self._connection._parser.on_connect(self._connection)


def held(said: Received) -> bytes:
    """Return a refusal because another client holds the lock."""
    if said.name != "acquire":
        return honest(said)
    return resp(packed([said.number, 0, time.time_ns() // 1000, 1, 60_000, 5, 0, b"f" * 32]))


@both
@pytest.mark.usefixtures("no_fallback")
def test_a_called_waiter_asks_and_no_other(name: str) -> None:
    player = ScriptedMaster(held)
    with scripted(name, player) as variant, ThreadPoolExecutor(2) as pool:
        first = pool.submit(variant.acquire, "order:1", wait=NEVER)
        wait_refused(variant, player, "order:1")
        second = pool.submit(variant.acquire, "order:2", wait=NEVER)
        wait_refused(variant, player, "order:1", "order:2")
        channel = next(said.keys[0] for said in player.heard if said.name == "subscribe")
        player.answer = honest
        player.send(push(b"message", channel, channel + b" 2"))
        lease = second.result(CALLED)
        assert not first.done()
        player.send(push(b"message", channel, channel + b" 1"))
        first.result(CALLED)
        assert asks(player) == ["order:1", "order:2", "order:2", "order:1"]
        assert variant.release(lease) is True


def wait_refused(variant: Variant, player: ScriptedMaster, *resources: str) -> None:
    """Wait until a master was asked for these, and its answers were read."""
    until(lambda: asks(player) == [*resources], f"the master is asked: {asks(player)}")
    until(lambda: not variant.inside(variant.links.owing), "all masters have answered")


def asks(player: ScriptedMaster) -> list[str]:
    """Return the resources that were asked for."""
    locks = [said.keys[3].decode() for said in player.heard if said.name == "acquire"]
    return [lock.removeprefix("redlock:lock:") for lock in locks]


@both
@pytest.mark.usefixtures("no_fallback")
def test_one_lock_passes_through_many_hands(name: str, masters: list[LocalMaster]) -> None:
    turns: list[int] = []
    holding = threading.Lock()

    def take_turns(number: int) -> None:
        for _ in range(10):
            lease: RedlockLease = variant.acquire("order:1", wait=25.0)
            assert holding.acquire(blocking=False), "two clients hold it"
            turns.append(number)
            holding.release()
            variant.release(lease)

    with joined(name, masters) as variant, ThreadPoolExecutor(6) as pool:
        for taker in [pool.submit(take_turns, number) for number in range(6)]:
            taker.result(60)
    assert sorted(turns) == sorted(list(range(6)) * 10)


@both
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.usefixtures("no_fallback")
def test_a_called_waiter_asks_once(name: str, n: int, masters: list[LocalMaster]) -> None:
    masters = masters[:n]
    with joined("threads", masters, **LONG) as ours, joined(name, masters, **LONG) as theirs:
        lease = ours.acquire("order:1", ttl=60.0)
        ours.settle()
        with waiting(theirs, masters) as taker:
            before = scripts_run(masters)
            assert ours.release(lease) is True
            ours.settle()
            won = taker.result(CALLED)
            theirs.settle()
            assert scripts_run(masters) == [one + 2 for one in before]
        assert won.fences[0] > lease.fences[0]
        state, won = theirs.extend(won, 60.0)
        assert state is LeaseState.RENEWED
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters)


# Masters that are gone.


GONE: dict[str, tuple[Callable[[LocalMaster], None], Callable[[LocalMaster], None]]] = {
    "killed": (LocalMaster.kill, LocalMaster.start),
    "hung": (LocalMaster.pause, LocalMaster.resume),
}


@both
@pytest.mark.parametrize("down", [1, 2])
@pytest.mark.parametrize("fault", GONE)
@pytest.mark.usefixtures("no_fallback")
def test_the_masters_that_are_left_call(
    name: str, fault: str, down: int, masters: list[LocalMaster]
) -> None:
    fail, come_back = GONE[fault]
    with joined("threads", masters, **LONG) as ours, joined(name, masters, **LONG) as theirs:
        lease = ours.acquire("order:1", ttl=60.0)
        ours.settle()
        with waiting(theirs, masters) as taker:
            for master in masters[:down]:
                fail(master)
            ours.release(lease)
            won = taker.result(CALLED)
        assert theirs.release(won) is True
        for master in masters[:down]:
            come_back(master)
        theirs.settle()
        nothing_left(masters)


@pytest.mark.slow
@both
@pytest.mark.parametrize("restarted", [1, 3, 5])
@pytest.mark.parametrize("kept", [False, True], ids=["emptied", "with AOF"])
def test_a_waiter_whose_masters_restart_gets_the_lock(
    name: str, restarted: int, kept: bool
) -> None:
    args = ["--appendonly", "yes", "--appendfsync", "always"] if kept else []
    with (
        local_masters(5, args=args) as masters,
        joined("threads", masters, max_ttl=60.0) as ours,
        joined(name, masters, max_ttl=60.0) as theirs,
    ):
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            for master in masters[:restarted]:
                master.restart()
            ours.release(lease)
            won = taker.result(60)
        theirs.release(won)
        for either in (ours, theirs):
            either.settle()
        nothing_left(masters)


@pytest.mark.slow
@both
@pytest.mark.parametrize("links", [1, 3, 5])
def test_a_waiter_whose_links_are_closed_meanwhile_gets_the_lock(
    name: str, links: int, masters: list[LocalMaster]
) -> None:
    with joined("threads", masters, **LONG) as ours, joined(name, masters, **LONG) as theirs:
        for turn in range(10):
            for either in (ours, theirs):
                either.start()
                either.wait_usable(5)
                either.settle()
            lease = ours.acquire("order:1", ttl=50.0)
            ours.settle()
            with waiting(theirs, masters) as taker, ThreadPoolExecutor(2) as pool:
                first, second = (close, ours.release) if turn % 2 else (ours.release, close)
                what: dict[Any, Any] = {close: masters[:links], ours.release: lease}
                done = [pool.submit(each, what[each]) for each in (first, second)]
                won = taker.result(60)
                for each in done:
                    each.result(60)
            theirs.release(won)
            for either in (ours, theirs):
                either.settle()
            nothing_left(masters)


def close(masters: Sequence[LocalMaster]) -> None:
    """Close all links on which waiters are called."""
    for master in masters:
        looking_at(master).execute_command("CLIENT", "KILL", "TYPE", "pubsub")
