"""Waiting over real and scripted masters: which waiter is called, who subscribes, what is left.

Tests of calls put the fallback out of reach: without the call they would not end in time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine import pauses
from redlock_django.engine.errors import ResourceLocked
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from redlock_django.wire.links import waiters as wire_waiter
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.servers.handshake import speaks_resp3
from tests.live.left_over import nothing_left
from tests.live.linked import has_sleepers
from tests.live.replaced_scripts import lengthen_turns
from tests.looking import looking_at, scripts_run
from tests.replies import packed
from tests.waiting import until
from tests.wire.scripted import Received, ScriptedMaster, honest, push, resp
from tests.wire.test_link import scripted
from tests.wire.variants import VARIANTS, Loop, Threads, Variant, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from redlock_django.engine.validity import RedlockLease
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

both = pytest.mark.parametrize("name", VARIANTS)
NEVER = 30.0


def ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiters ask again only after a call."""
    monkeypatch.setattr(pauses, "FALLBACK", NEVER)
    monkeypatch.setattr(pauses, "CALM", NEVER)
    monkeypatch.setattr(pauses, "LONGEST", NEVER)
    monkeypatch.setattr(pauses, "CALM_LONGEST", NEVER)
    monkeypatch.setattr(wire_waiter, "WATCH", NEVER)


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns last longer than a busy machine stops a waiter that was called."""
    lengthen_turns(monkeypatch, 30)


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiters ask again only after a call."""
    ask_once(monkeypatch)


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
def waiters(variant: Variant, masters: Sequence[LocalMaster], *names: str) -> Iterator[Queue]:
    """Make these waiters wait for "order:1", in this order, each in a thread of its own."""
    with ThreadPoolExecutor(len(names)) as pool:
        queue = Queue(variant, pool)
        for index, name in enumerate(names, 1):
            queue.join(name)
            wait_queued(masters, "order:1", index)
        yield queue


class Queue:
    """Waiters, and the order in which they acquired the lock."""

    def __init__(self, variant: Variant, pool: ThreadPoolExecutor) -> None:
        self.variant = variant
        self.pool = pool
        self.order: list[str] = []
        self.takers: dict[str, Future[None]] = {}

    def join(self, name: str) -> None:
        self.takers[name] = self.pool.submit(self._take, name)

    def _take(self, name: str) -> None:
        lease = self.variant.acquire("order:1", wait=20.0)
        self.order.append(name)
        self.variant.release(lease)

    def ended(self) -> list[str]:
        for taker in self.takers.values():
            taker.result(60)
        return self.order


@both
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.usefixtures("no_fallback")
def test_each_release_calls_the_next(name: str, masters: list[LocalMaster], n: int) -> None:
    masters = masters[:n]
    with joined(name, masters) as variant:
        lease = variant.acquire("order:1")
        with waiters(variant, masters, "A", "B", "C") as queue:
            variant.release(lease)
            assert queue.ended() == ["A", "B", "C"]
        variant.settle()
        assert queued(masters, "order:1") == [0] * n


@both
@pytest.mark.usefixtures("no_fallback")
def test_an_extended_lock_is_still_waited_for(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3]) as variant:
        lease = variant.acquire("order:1", ttl=5.0)
        with waiters(variant, masters[:3], "A") as queue:
            _, lease = variant.extend(lease, 8.0)
            variant.release(lease)
            assert queue.ended() == ["A"]


@both
@pytest.mark.usefixtures("no_fallback", "long_turns")
def test_a_lock_that_expires_is_taken_by_the_first(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3]) as variant, ThreadPoolExecutor(2) as pool:
        variant.acquire("order:1", ttl=0.6, wait=60.0)
        queue = Queue(variant, pool)
        queue.join("A")
        # On a busy machine the lock may expire before A or B is in the queues.
        until(lambda: queue.order or queued(masters[:3], "order:1") == [1] * 3, "A waits")
        queue.join("B")
        assert queue.ended() == ["A", "B"]


@pytest.mark.attack
@both
def test_after_a_lost_call_the_waiter_asks_again(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiters, "call", lambda self, name, master: False)
    monkeypatch.setattr(pauses, "CALM", 0.3)
    with joined(name, masters[:3]) as variant:
        lease = variant.acquire("order:1")
        with waiters(variant, masters[:3], "A") as queue:
            variant.release(lease)
            assert queue.ended() == ["A"]


@both
@pytest.mark.parametrize("down", [1, 2])
@pytest.mark.usefixtures("no_fallback")
def test_with_masters_hung_the_others_call(
    name: str, masters: list[LocalMaster], down: int
) -> None:
    with joined(name, masters) as variant:
        lease = variant.acquire("order:1")
        with waiters(variant, masters, "A", "B") as queue:
            for master in masters[:down]:
                master.pause()
            variant.release(lease)
            assert queue.ended() == ["A", "B"]
            for master in masters[:down]:
                master.resume()
        variant.wait_usable(5)
        until(lambda: queued(masters, "order:1") == [0] * 5, "nobody is left in a queue")


@both
@pytest.mark.usefixtures("no_fallback")
def test_masters_that_come_back_are_subscribed_to_again(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        for master in masters[:3]:
            master.restart()
        variant.start()
        variant.wait_usable(3)
        lease = variant.acquire("order:1", wait=60.0)  # a dead link may be noticed only now
        with waiters(variant, masters[:3], "A", "B") as queue:
            variant.release(lease)
            assert queue.ended() == ["A", "B"]


@contextmanager
def stopped_process(
    masters: Sequence[LocalMaster], waiters: int
) -> Iterator[Callable[[], list[int]]]:
    """Add waiters before all others. Their process is subscribed but never asks.

    Yield a function that returns how many of them each master has called since its last call.
    """
    with ExitStack() as stack:
        ears = []
        for master in masters:
            client = stack.enter_context(master.client())
            ear = stack.enter_context(client.pubsub())
            ear.subscribe("redlock:wake:mute")
            ear.get_message(timeout=60)
            names = {f"redlock:wake:mute {number}": number for number in range(1, waiters + 1)}
            client.zadd("redlock:queue:order:1", names)
            ears.append(ear)
        yield lambda: [sum(1 for _ in iter(ear.get_message, None)) for ear in ears]


@pytest.mark.fault(without=("a stopped process has a turn for each of its waiters",))
@both
def test_a_stopped_process_with_many_waiters_costs_one_turn(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        lease = variant.acquire("order:1")
        with (
            waiters(variant, masters[:3], "A") as queue,
            stopped_process(masters[:3], 100) as called,
        ):
            variant.release(lease)
            assert queue.ended() == ["A"]
            variant.settle()
            assert max(called()) < 5, "they are not called one after the other"


@both
def test_waiters_do_not_poll(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "FALLBACK", 0.0)
    player = ScriptedMaster(held)
    with scripted(name, player) as variant, ThreadPoolExecutor(1) as pool:
        taker = pool.submit(variant.acquire, "order:1", wait=0.5)  # less than CALM
        with pytest.raises(ResourceLocked):
            taker.result(60)
        assert asks(player) == ["order:1"] * 2, "at first, and when it gives up"


@pytest.mark.fault(without=("a lost link goes unnoticed",))
@both
def test_a_waiter_whose_link_was_lost_asks_soon(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "CALM", NEVER)
    monkeypatch.setattr(pauses, "CALM_LONGEST", NEVER)
    long = {"max_ttl": 60.0}
    with (
        joined(name, masters[:3], **long) as variant,
        joined("threads", masters[:3], **long) as holder,
    ):
        lease = holder.acquire("order:1", ttl=60.0)
        with waiters(variant, masters[:3], "A") as queue:
            for master in masters[:3]:
                with master.client() as client:
                    client.delete("redlock:queue:order:1")  # so that no master calls
            assert holder.release(lease) is True
            masters[0].kill()
            began = time.monotonic()
            assert queue.ended() == ["A"]
            assert time.monotonic() - began < 15.0, "it did not wait until it gave up after 20 s"


# Clients that do not wait.


@both
@pytest.mark.usefixtures("no_fallback", "long_turns")
def test_a_client_that_does_not_wait_is_refused_during_a_turn(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant, joined("threads", masters[:3]) as other:
        lease = variant.acquire("order:1")
        with stopped_process(masters[:3], 1) as called:
            variant.release(lease)
            variant.settle()
            with pytest.raises(ResourceLocked) as caught:
                other.acquire("order:1")
            stated = {reason.partition(" for ")[0] for reason in caught.value.tally.values()}
            assert stated <= {"reserved", "no answer yet"}
            assert caught.value.retry_after is not None
            assert caught.value.retry_after <= 30.0
            assert called() == [1] * 3
            for master in masters[:3]:  # the turn ends
                with master.client() as client:
                    client.zadd("redlock:queue:order:1", {"redlock:wake:mute 1": -1})
            # The silent waiter has no second one.
            for _ in range(3):
                other.release(other.acquire("order:1", wait=20.0))
            other.release(other.acquire("order:1"))


# Waiters that stop waiting.


@both
@pytest.mark.usefixtures("no_fallback")
def test_a_wait_that_times_out_leaves_every_queue(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3]) as variant:
        variant.acquire("order:1")
        with pytest.raises(ResourceLocked):
            variant.acquire("order:1", wait=0.1)
        variant.settle()
        assert queued(masters[:3], "order:1") == [0, 0, 0]


@contextmanager
def waiters_behind(variant: Variant, masters: Sequence[LocalMaster], ahead: int) -> Iterator[Queue]:
    with ThreadPoolExecutor(1) as pool:
        queue = Queue(variant, pool)
        queue.join("behind")
        wait_queued(masters, "order:1", ahead + 1)
        yield queue


CHILD = """
import sys
from tests.wire.variants import make_backend
backend = make_backend(sys.argv[1:], max_ttl=60.0)
backend.acquire(("order:1",), 8.0, 60.0, "{}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.usefixtures("no_fallback")
def test_a_process_that_died_waiting_is_skipped(
    end: signal.Signals, masters: list[LocalMaster]
) -> None:
    # The lock must not expire before the process waits for it, which takes seconds to start.
    with joined("threads", masters[:3], max_ttl=60.0) as variant:
        lease = variant.acquire("order:1", ttl=60.0)
        urls = [master.url for master in masters[:3]]
        child = subprocess.Popen([sys.executable, "-c", CHILD, *urls], stderr=subprocess.DEVNULL)
        try:
            wait_queued(masters[:3], "order:1", 1)
            with waiters_behind(variant, masters[:3], 1) as queue:
                child.send_signal(end)
                assert child.wait(60) != 0
                variant.release(lease)
                assert queue.ended() == ["behind"]
        finally:
            child.kill()
            child.wait()


# Masters that cannot call.


@both
def test_a_user_that_may_not_subscribe_is_logged_once_and_asks_again(
    name: str, masters: list[LocalMaster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "redlock_django")
    with ExitStack() as stack:
        for master in masters[:3]:
            client = stack.enter_context(master.client())
            client.execute_command(
                "ACL", "SETUSER", "poor", "reset", "on", ">x", "~*", "+@all", "-subscribe"
            )
            stack.callback(client.execute_command, "ACL", "DELUSER", "poor")
        urls = [f"redis://poor:x@127.0.0.1:{master.port}/0" for master in masters[:3]]
        variant = stack.enter_context(joined(name, masters[:3], urls=urls))
        lease = variant.acquire("order:1")
        with waiters(variant, masters[:3], "A", "B") as queue:
            variant.release(lease)
            assert sorted(queue.ended()) == ["A", "B"]
    told = [
        record.getMessage()
        for record in caplog.records
        if "cannot call waiters" in record.getMessage()
    ]
    assert len(told) == 3
    assert all("its ACL forbids 'subscribe'" in text for text in told)


@pytest.mark.parametrize(
    ("answer", "speaks"),
    [
        (b"%1\r\n$5\r\nproto\r\n:3\r\n", True),
        (b"-ERR unknown command `HELLO`\r\n", False),
        (b"-NOPROTO unsupported protocol version\r\n", False),
        (b"*2\r\n$5\r\nproto\r\n:2\r\n", False),
    ],
)
def test_replies_to_hello(answer: bytes, speaks: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for index in range(len(answer)):
            theirs.sendall(answer[index : index + 1])
        assert speaks_resp3(ours) is speaks
        assert theirs.recv(100) == b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"


def test_a_server_that_hangs_up_on_hello() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            speaks_resp3(ours)
        theirs.close()


# Pushes are not replies.


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
        first = pool.submit(variant.acquire, "order:1", wait=20.0)
        wait_refused(variant, player, "order:1")
        second = pool.submit(variant.acquire, "order:2", wait=20.0)
        wait_refused(variant, player, "order:1", "order:2")
        channel = next(said.keys[0] for said in player.heard if said.name == "subscribe")
        player.answer = honest
        player.send(push(b"message", channel, channel + b" 2"))
        lease = second.result(60)
        assert not first.done()
        player.send(push(b"message", channel, channel + b" 1"))
        first.result(60)
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
def test_calls_of_a_minority_wake_no_waiter(name: str) -> None:
    players = [ScriptedMaster(held) for _ in range(3)]
    with scripted(name, *players) as variant, ThreadPoolExecutor(1) as pool:
        taker = pool.submit(variant.acquire, "order:1", wait=20.0)
        for player in players:
            wait_refused(variant, player, "order:1")
        channel = next(said.keys[0] for said in players[0].heard if said.name == "subscribe")
        for player in players:
            player.answer = honest
        called = push(b"message", channel, channel + b" 1")
        for _ in range(3):
            players[0].send(called)
        # The call has surely been read once another round's reply came after it, from this
        # master, too: two others decide the round.
        variant.release(variant.acquire("order:2"))
        until(lambda: "order:2" in asks(players[0]), "it is asked")
        until(lambda: not variant.inside(variant.links.owing), "it has answered")
        assert asks(players[0]) == ["order:1", "order:2"]
        players[1].send(called)
        taker.result(60)


# Sleeping threads read, too.


@pytest.mark.usefixtures("no_fallback")
def test_threads_that_wait_read_for_those_that_work(masters: list[LocalMaster]) -> None:
    with joined("threads", masters[:3]) as variant:
        assert isinstance(variant, Threads)
        lease = variant.acquire("order:1")
        with waiters(variant, masters[:3], "A", "B", "C") as queue:
            for turn in range(50):
                other = variant.acquire(f"other:{turn}")
                assert variant.release(other) is True
            variant.release(lease)
            assert queue.ended() == ["A", "B", "C"]


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


# Who holds the lock after a call, and what is left.


@contextmanager
def waiting(
    variant: Variant, masters: Sequence[LocalMaster], behind: int = 0, **how: Any
) -> Iterator[Future[RedlockLease]]:
    """Yield the lease of a waiter for "order:1" that has read its refusals, in the future."""
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(variant.acquire, "order:1", **{"wait": 20.0, **how})
        wait_queued(masters, "order:1", behind + 1)
        variant.settle()
        until(lambda: has_sleepers(variant.links), "the waiter sleeps")
        yield taker


@both
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.usefixtures("no_fallback")
def test_a_called_waiter_asks_once(name: str, n: int, masters: list[LocalMaster]) -> None:
    masters = masters[:n]
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            before = scripts_run(masters)
            assert ours.release(lease) is True
            ours.settle()
            won = taker.result(60)
            theirs.settle()
            assert scripts_run(masters) == [one + 2 for one in before]
        assert won.fences[0] > lease.fences[0]
        state, won = theirs.extend(won, 9.0)
        assert state is LeaseState.RENEWED
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters)


@pytest.mark.usefixtures("no_fallback")
def test_waiters_of_several_processes_are_called_in_their_order(masters: list[LocalMaster]) -> None:
    with (
        joined("threads", masters) as ours,
        joined("loop", masters) as second,
        joined("threads", masters) as third,
    ):
        lease = ours.acquire("order:1")
        with waiting(second, masters) as taker, waiting(third, masters, 1) as last:
            ours.release(lease)
            lease = taker.result(60)
            assert not last.done()
            second.release(lease)
            third.release(last.result(60))
        third.settle()
        nothing_left(masters)


# Masters that are gone.


@both
@pytest.mark.parametrize("dead", [1, 2])
@pytest.mark.usefixtures("no_fallback")
def test_the_masters_that_are_left_call(name: str, dead: int, masters: list[LocalMaster]) -> None:
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            for master in masters[:dead]:
                master.kill()
            ours.release(lease)
            won = taker.result(60)
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters[dead:])


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
        nothing_left(masters, 20.0)


# Waiters that are interrupted just when they are called.


@pytest.mark.slow
@both
@pytest.mark.parametrize("links", [1, 3, 5])
def test_a_waiter_whose_links_are_closed_meanwhile_gets_the_lock(
    name: str, links: int, masters: list[LocalMaster]
) -> None:
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        for turn in range(10):
            for either in (ours, theirs):
                either.start()
                either.wait_usable(5)
                either.settle()
            lease = ours.acquire("order:1")
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
            nothing_left(masters, 20.0)


def close(masters: Sequence[LocalMaster]) -> None:
    """Close all links on which waiters are called."""
    for master in masters:
        looking_at(master).execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@pytest.mark.slow
def test_a_waiter_that_is_cancelled_meanwhile_leaves_nothing(masters: list[LocalMaster]) -> None:
    ended: dict[bool, int] = {True: 0, False: 0}
    with joined("threads", masters) as ours, joined("loop", masters) as theirs:
        assert isinstance(theirs, Loop)
        for turn in range(40):
            lease = ours.acquire("order:1", wait=60.0)
            work = theirs.backend.aacquire(("order:1",), 8.0, 20.0, "{}")
            task = asyncio.run_coroutine_threadsafe(work, theirs.loop)
            wait_queued(masters, "order:1", 1)
            theirs.settle()
            with ThreadPoolExecutor(1) as pool:
                free = pool.submit(ours.release, lease)
                if turn % 2:
                    free.result(60)
                task.cancel()
                free.result(60)
            try:
                theirs.release(task.result(60))
                ended[True] += 1
            except CancelledError:
                ended[False] += 1
            for either in (ours, theirs):
                either.settle()
            nothing_left(masters, 20.0)
    assert ended[False]
