"""Real masters whose releases call the next waiter: who holds the lock, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import local_masters
from tests.live.left_over import nothing_left
from tests.live.linked import has_sleepers
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
def asking_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiters ask again only after a call."""
    ask_once(monkeypatch)


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
@pytest.mark.usefixtures("asking_once")
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


@pytest.mark.usefixtures("asking_once")
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
@pytest.mark.usefixtures("asking_once")
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
