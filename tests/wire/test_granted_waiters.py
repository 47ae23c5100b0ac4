"""Real masters whose releases set the lock for the next waiter: who holds it, and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from tests.live.left_over import locked, nothing_left, values
from tests.live.noted_grants import note_grants
from tests.live.replaced_scripts import lengthen_offers
from tests.looking import looking_at, scripts_run
from tests.waiting import until
from tests.wire.test_waiters import ask_once, wait_queued
from tests.wire.variants import VARIANTS, Loop, Variant, joined

if TYPE_CHECKING:
    from redlock_django.engine.validity import RedlockLease
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

both = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make offers last longer than a busy machine stops a waiter before the release."""
    lengthen_offers(monkeypatch)


@pytest.fixture
def asking_once(monkeypatch: pytest.MonkeyPatch, lasting: None) -> None:
    """Make waiters ask again only if something wakes them."""
    ask_once(monkeypatch)


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the waiters to which a majority grants the lock from here on."""
    return note_grants(monkeypatch)


@contextmanager
def waiting(
    variant: Variant, masters: Sequence[LocalMaster], behind: int = 0, **how: Any
) -> Iterator[Future[RedlockLease]]:
    """Yield the lease of a waiter for "order:1" that has read its refusals, in the future."""
    with ThreadPoolExecutor(1) as pool:
        taker = pool.submit(variant.acquire, "order:1", **{"wait": 20.0, **how})
        wait_queued(masters, "order:1", behind + 1)
        variant.settle()
        until(lambda: variant.links.waiters.queues._queues, "the waiter sleeps")
        yield taker


def wait_held(masters: Sequence[LocalMaster], lease: RedlockLease) -> None:
    """Wait until all masters have a lease's lock."""
    token = lease.token.encode()

    def held() -> bool:
        found = values(masters, "order:1")
        return len(found) == len(masters) and all(one.startswith(token) for one in found)

    until(held, f"{lease.token} is held: {values(masters, 'order:1')}")


@both
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.usefixtures("asking_once")
def test_a_granted_waiter_sends_no_second_acquire(
    name: str, n: int, masters: list[LocalMaster]
) -> None:
    masters = masters[:n]
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            before = scripts_run(masters)
            assert ours.release(lease) is True
            ours.settle()
            won = taker.result(60)
            wait_held(masters, won)
            assert scripts_run(masters) == [one + 1 for one in before]
        assert won.fences[0] > lease.fences[0]
        state, won = theirs.extend(won, 9.0)
        assert state is LeaseState.RENEWED
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters)


@pytest.mark.usefixtures("asking_once")
def test_waiters_of_several_processes_are_granted_the_lock_in_their_order(
    masters: list[LocalMaster], granted: list[str]
) -> None:
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
        assert len(granted) == 2
        third.settle()
        nothing_left(masters)


# Waiters that are gone.

CHILD = """
import sys
from tests.wire.variants import make_backend
backend = make_backend(sys.argv[2:], max_ttl=60.0, master_timeout=3.0, connect_timeout=5.0)
backend.acquire(("order:1",), float(sys.argv[1]), 60.0, '{"child":1}')
"""


@contextmanager
def child_waiting(masters: Sequence[LocalMaster], ttl: float) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that waits in all queues."""
    urls = [master.url for master in masters]
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(ttl), *urls])
    try:
        wait_queued(masters, "order:1", 1)
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("asking_once")
def test_the_waiter_after_a_killed_one_is_granted_the_lock(
    masters: list[LocalMaster], granted: list[str]
) -> None:
    with joined("threads", masters, max_ttl=60.0) as ours:
        lease = ours.acquire("order:1", ttl=60.0)
        with (
            child_waiting(masters, 60.0) as child,
            joined("threads", masters, max_ttl=60.0) as theirs,
            waiting(theirs, masters, 1) as taker,
        ):
            child.kill()
            child.wait()
            until(lambda: listening(masters) == [2] * 5, "the masters have noticed")
            ours.release(lease)
            won = taker.result(60)
            wait_held(masters, won)
            theirs.release(won)
            theirs.settle()
        assert len(granted) == 1
        nothing_left(masters)


def listening(masters: Sequence[LocalMaster]) -> list[int]:
    """Return on how many channels each master calls waiters."""
    asked = ("PUBSUB", "CHANNELS", "redlock:wake:*")
    return [len(looking_at(master).execute_command(*asked)) for master in masters]


@pytest.mark.usefixtures("lasting")
def test_a_stopped_waiter_that_is_granted_the_lock_has_it_for_its_ttl(
    masters: list[LocalMaster],
) -> None:
    with joined("threads", masters, max_ttl=60.0) as ours:
        lease = ours.acquire("order:1", ttl=60.0)
        with (
            child_waiting(masters, 1.0) as child,
            joined("threads", masters, max_ttl=60.0) as theirs,
        ):
            stop(child)
            with waiting(theirs, masters, 1) as taker:
                ours.release(lease)
                ours.settle()
                assert [b'"child"' in one for one in values(masters, "order:1")] == [True] * 5
                won = taker.result(60)
            wait_held(masters, won)
            theirs.release(won)
            theirs.settle()
        nothing_left(masters)


def test_a_waiter_that_has_stopped_before_is_not_granted_the_lock(
    masters: list[LocalMaster],
) -> None:
    with joined("threads", masters, max_ttl=60.0) as ours:
        lease = ours.acquire("order:1", ttl=60.0)
        with child_waiting(masters, 60.0) as child:
            stop(child)
            for master in masters:  # that was long ago
                make_older(looking_at(master))
            with joined("threads", masters, max_ttl=60.0) as theirs:
                with waiting(theirs, masters, 1) as taker:
                    ours.release(lease)
                    won = taker.result(60)
                wait_held(masters, won)
                theirs.release(won)
                theirs.settle()
        assert not locked(masters)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Stop a process until it is killed."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


OLDER = """
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local offer = { cmsgpack.unpack(redis.call('HGET', KEYS[1], name)) }
  offer[2] = offer[2] - 2000000
  redis.call('HSET', KEYS[1], name, cmsgpack.pack(unpack(offer)))
end
"""


def make_older(client: Any) -> None:
    """Make the offers of a master two seconds older."""
    client.eval(OLDER, 1, "redlock:offers:order:1")


# Masters that are gone.


@both
@pytest.mark.parametrize("dead", [1, 2])
@pytest.mark.usefixtures("asking_once")
def test_the_masters_that_are_left_grant_the_lock(
    name: str, dead: int, masters: list[LocalMaster], granted: list[str]
) -> None:
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            for master in masters[:dead]:
                master.kill()
            ours.release(lease)
            won = taker.result(60)
            wait_held(masters[dead:], won)
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters[dead:])


@both
@pytest.mark.usefixtures("asking_once")
def test_masters_that_hang_set_the_lock_later(
    name: str, masters: list[LocalMaster], granted: list[str]
) -> None:
    with joined("threads", masters) as ours, joined(name, masters) as theirs:
        lease = ours.acquire("order:1")
        ours.settle()
        with waiting(theirs, masters) as taker:
            for master in masters[:2]:
                master.pause()
            ours.release(lease)
            won = taker.result(60)
            for master in masters[:2]:
                master.resume()
            wait_held(masters, won)
        assert len(granted) == 1
        assert theirs.release(won) is True
        theirs.settle()
        nothing_left(masters)


@both
@pytest.mark.parametrize("restarted", [1, 3, 5])
@pytest.mark.parametrize("kept", [False, True], ids=["emptied", "with AOF"])
@pytest.mark.usefixtures("lasting")
def test_a_restarted_master_grants_by_no_offer_of_before(
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


# Waiters that are interrupted just when they are granted the lock.


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
