"""Five real masters of which a minority breaks in every way, under traffic and at the start."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.clock import clock
from tests.wire.colours import COLOURS, Colour, coloured, joined, make_backend, trust
from tests.wire.proxy import FaultProxy
from tests.wire.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
both = pytest.mark.parametrize("name", COLOURS)


def left(masters: Sequence[LocalMaster]) -> list[str]:
    """The locks, and members of the index, that stand on any of these masters."""
    found = []
    for master in masters:
        with master.client() as client:
            found += [key.decode() for key in client.scan_iter(match="redlock:lock:*")]
            found += [member.decode() for member in client.zrange("redlock:held", 0, -1)]
    return found


class Traffic:
    """Threads of both colours that want the same few locks, and watch each other.

    `wins` counts; `trouble` lists whatever must not happen.
    """

    def __init__(self, colours: Sequence[Colour], workers: int, resources: int) -> None:
        self.wins = 0
        self.trouble: list[str] = []
        self._inside: dict[str, str] = {}
        self._fences: dict[str, int] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._work, args=(colours[n % len(colours)], f"{n}", resources), daemon=True
            )
            for n in range(workers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def wait_for_wins(self, more: int, when: str) -> None:
        enough = self.wins + more
        until(lambda: self.wins >= enough or self.trouble, f"{more} more locks while {when}")
        assert self.trouble == [], when

    def _work(self, colour: Colour, who: str, resources: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            resource = f"order:{(turn + int(who)) % resources}"
            try:
                lease = colour.acquire(resource, ttl=1.0, wait=0.5)
            except NotAcquired:
                continue
            except BaseException as error:
                self.trouble.append(f"{who}: {error!r}")
                raise
            with self._guard:
                other = self._inside.get(resource)
                if other is not None and clock() < lease.until:
                    self.trouble.append(f"{who} beside {other} in {resource}")
                if lease.fences[0] <= self._fences.get(resource, 0):
                    self.trouble.append(f"{who} has an old fence for {resource}")
                self._fences[resource] = lease.fences[0]
                self._inside[resource] = who
            if turn % 3 == 0:
                state, lease = colour.extend(lease, ttl=1.0)
                if state is LeaseState.LOST and clock() < lease.until:
                    self.trouble.append(f"{who} lost {resource}")
            with self._guard:
                if self._inside.get(resource) == who:
                    del self._inside[resource]
                self.wins += 1
            colour.release(lease)


def test_locks_go_on_while_two_of_five_are_hurt_in_every_way(masters: list[LocalMaster]) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(masters[1].port))
        urls = [masters[0].url, proxy.url, *(master.url for master in masters[2:])]
        # A restart delay that covers the largest TTL, as "auto" would have it.
        terms = {"max_ttl": 1.0, "max_clock_skew": 0.2, "restart_delay": 2.1}
        backend = make_backend(urls, **terms, master_timeout=0.15)  # type: ignore[arg-type]
        for master in masters:
            trust(master, backend.terms)
        colours = [stack.enter_context(coloured(name, backend)) for name in COLOURS]
        with Traffic(colours, workers=6, resources=2) as traffic:
            traffic.wait_for_wins(20, "all is well")
            masters[0].pause()
            proxy.delay_down = 0.2
            traffic.wait_for_wins(20, "one hangs and one is slow")
            masters[0].resume()
            proxy.delay_down = 0.0
            masters[0].kill()
            proxy.lose_replies = True
            traffic.wait_for_wins(20, "one is dead and one obeys but never answers")
            masters[0].start()
            proxy.lose_replies = False
            proxy.refuse()
            traffic.wait_for_wins(20, "one came back empty and one refuses")
            proxy.accept()
            proxy.slices = True
            proxy.cut()
            traffic.wait_for_wins(20, "one was cut and answers in pieces of one byte")
            proxy.slices = False
            for master in masters[:2]:
                with master.client() as client:
                    client.script_flush()
            masters[1].pause()
            traffic.wait_for_wins(20, "the scripts are gone and another hangs")
            masters[1].resume()
            traffic.wait_for_wins(20, "all are back")
        assert traffic.trouble == []
        for colour in colours:
            colour.wait_usable(5)
            colour.settle()
        until(lambda: not left(masters), f"nothing is left: {left(masters)}", 3)


@both
def test_a_minority_that_is_down_from_the_start(name: str, masters: list[LocalMaster]) -> None:
    masters[0].kill()
    masters[1].pause()
    backend = make_backend([master.url for master in masters], connect_timeout=4.0)
    with coloured(name, backend) as colour:
        began = time.monotonic()
        lease = colour.acquire("order:1")
        assert time.monotonic() - began < 4.0, "the hung master is not waited for"
        assert colour.release(lease) is True
        masters[1].resume()


@both
def test_a_majority_that_is_down_from_the_start(name: str, masters: list[LocalMaster]) -> None:
    masters[0].kill()
    masters[1].kill()
    backend = make_backend([master.url for master in masters[:3]], connect_timeout=4.0)
    with coloured(name, backend) as colour:
        began = time.monotonic()
        with pytest.raises(QuorumUnreachable) as caught:
            colour.acquire("order:1")
        assert time.monotonic() - began < 4.0
        said = list(caught.value.tally.values())
        assert said.count("refused the connection") >= 1
        for master in masters[:2]:
            master.start()
        assert colour.release(colour.acquire("order:1", wait=5.0)) is True


@both
def test_the_deciding_master_is_killed_in_the_middle_of_a_round(
    name: str, masters: list[LocalMaster]
) -> None:
    with (
        joined(name, masters[:3], master_timeout=8.0) as colour,
        ThreadPoolExecutor(1) as pool,
    ):
        for master in masters[:2]:
            master.pause()
        taker = pool.submit(colour.acquire, "order:1")
        until(lambda: left(masters[2:3]), "the third has granted")
        began = time.monotonic()
        for master in masters[:2]:
            master.kill()
        with pytest.raises(QuorumUnreachable):
            taker.result(20)
        assert time.monotonic() - began < 5.0, "told by the end of the link, not by the timeout"
        until(lambda: not left(masters[2:3]), "the minority is freed")
        for master in masters[:2]:
            master.start()
        colour.wait_usable(3)
        assert not left(masters[:3])


@both
def test_a_busy_master_is_left_out_and_freed_once_it_listens(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3], master_timeout=0.5) as colour, ExitStack() as stack:
        first = colour.acquire("order:1", ttl=10.0)
        colour.settle()
        client = stack.enter_context(masters[2].client())
        client.config_set("busy-reply-threshold", "20")
        stack.callback(client.config_set, "busy-reply-threshold", "5000")
        endless = threading.Thread(target=_loop_for_ever, args=(masters[2],))
        endless.start()
        until(lambda: _busy(masters[2]), "the master is busy")
        assert colour.release(first) is True
        second = colour.acquire("order:2", ttl=10.0)
        assert colour.release(second) is True
        with masters[2].client() as killer:
            killer.script_kill()
        endless.join()
        colour.wait_usable(3)
        until(lambda: not left(masters[:3]), "nothing is left")


def _loop_for_ever(master: LocalMaster) -> None:
    with master.client() as client:
        client.connection_pool.connection_kwargs["socket_timeout"] = 10
        with pytest.raises(Exception, match="kill"):
            client.eval("while true do end", 0)


def _busy(master: LocalMaster) -> bool:
    with master.client() as client:
        try:
            client.get("x")
        except Exception as error:  # noqa: BLE001 - redis-py has no name of its own for it
            return "BUSY" in str(error).upper()
    return False


@both
def test_threads_stay_few_with_a_hung_master(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3], master_timeout=0.1) as colour:
        before = threading.active_count()
        most = 0
        masters[0].pause()
        for _ in range(40):
            assert colour.release(colour.acquire("order:1")) is True
            most = max(most, threading.active_count())
        colour.wait_gone(0)
        for _ in range(40):
            assert colour.release(colour.acquire("order:1")) is True
            most = max(most, threading.active_count())
        assert most <= before + 1, "one thread dials the master that hangs"
        masters[0].resume()


LEAVING = """
import sys
from tests.wire.colours import Loop, Threads, make_backend
held = []
for kind in (Threads, Loop):
    colour = kind(make_backend(sys.argv[1:], connect_timeout=20.0))
    for n in range(10):
        colour.release(colour.acquire("order:1", wait=5.0))
    held.append(colour)
print("done", flush=True)
"""


def test_a_process_ends_promptly_with_a_hung_master(masters: list[LocalMaster]) -> None:
    masters[0].pause()
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVING, *(master.url for master in masters[:3])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "done\n"
        began = time.monotonic()
        assert process.wait(20) == 0
        assert time.monotonic() - began < 5.0
        assert process.stderr.read() == ""
