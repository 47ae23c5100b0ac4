"""Links with their drivers: signals, TLS, lost and idle connections, stalls of this process."""

from __future__ import annotations

import ctypes
import select
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from redlock_django.backends.redis import backend as backend_module
from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.engine.protocol.votes import failed
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers import combiner, loop, sockets, threads
from redlock_django.wire.drivers.sockets import LinkSocket, _in_order
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links import master as master_module
from redlock_django.wire.links.link import Exchange, ProtocolDesync
from redlock_django.wire.servers.handshake import KEEPALIVE
from tests.engine.mutants import kills
from tests.engine.mutation import never
from tests.waiting import until
from tests.wire.manual_links import ManualLinks, one_link
from tests.wire.proxy import FaultProxy, behind
from tests.wire.scripted import Received, ScriptedMaster, honest
from tests.wire.variants import (
    PATIENT,
    Variant,
    both,
    joined,
    make_backend,
    open_variant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


@contextmanager
def scripted(name: str, *players: ScriptedMaster, **settings: Any) -> Iterator[Variant]:
    """Yield a variant with scripted masters. They cannot be dialled, so a lost link stays lost."""
    urls = [f"unix:///nowhere/{index}.sock" for index in range(len(players))]
    with ExitStack() as stack:
        for player in players:
            stack.callback(player.close)
        backend = make_backend(urls, **{**PATIENT, **settings})
        variant = stack.enter_context(open_variant(name, backend))
        for index, player in enumerate(players):
            variant.links.masters[index].reason = "scripted"  # so that it is not dialled
            variant.driver.deliver(index, player.joined(run_id=str(index)))
        variant.wait_usable(len(players))
        yield variant


# Replies.


@both
def test_a_command_larger_than_the_socket_takes_is_sent_to_the_end(name: str) -> None:
    player = ScriptedMaster()
    large = '{"app":"' + "x" * 3_000_000 + '"}'
    with scripted(name, player, master_timeout=5.0) as variant:
        lease = variant.acquire("order:1", holder=large)
        assert variant.release(lease) is True
    assert [len(said.arguments[0]) for said in player.heard] == [len(large) + 33] * 2


class Struck(Exception):
    """The exception that the handler of a signal raises in these tests."""


class Interrupted:
    """A socket with a method that, like those of TLS, is Python code; a signal interrupts it."""

    def __init__(self, real: socket.socket, method: str) -> None:
        self._real, self._method, self._is_struck = real, method, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return partial(self._call, found) if name == self._method else found

    def _call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        result, is_struck, self._is_struck = method(argument), self._is_struck, True
        if not is_struck:
            raise Struck
        return result


@kills("half a command is sent on", _in_order, never("is_running"))
def test_an_interrupted_send_drops_the_link() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = LinkSocket(Interrupted(ours, "send"))  # type: ignore[arg-type]
        out = bytearray(b"PING\r\n")
        with pytest.raises(Struck):
            connection.send(out)
        with pytest.raises(ProtocolDesync, match="a send was interrupted"):
            connection.send(out)


def test_an_interrupted_receive_of_tls_drops_the_link(single: ManualLinks) -> None:
    master, ends = single.masters[0], single.ends[0]
    single.link(0).connection = LinkSocket(
        Interrupted(ends.theirs, "recv"),  # type: ignore[arg-type]
    )
    exchange = single.ask(single.acquire())
    with pytest.raises(Struck):
        single.reply(0, exchange.number)
    single.read(master)
    assert "a receive was interrupted" in master.reason
    assert exchange.decided


class TalkativeTLS(ssl.SSLSocket):
    """A TLS socket whose master has two more parts of a reply, and then closes the connection."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.parts = [b":1", b"\r\n", b""]

    def settimeout(self, value: float | None) -> None:
        self.asked.append("settimeout")

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        self.asked.append("recv")
        return self.parts.pop(0)


def test_a_tls_link_that_is_drained_waits_no_longer_than_it_may() -> None:
    talkative = TalkativeTLS()
    LinkSocket(talkative).drain(clock() + 60.0)
    assert talkative.asked == ["settimeout", "recv"] * 3


@both
def test_a_master_that_still_answers_receives_the_last_release(name: str) -> None:
    """A server that cannot send its reply drops the client, with commands it has not read yet."""
    left_alone = threading.Event()

    def slowly(said: Received) -> bytes | None:
        if said.name == "acquire":
            left_alone.set()
            leaving = select.poll()
            leaving.register(last.ours, select.POLLRDHUP)
            assert leaving.poll(10_000)
            last.ours.sendall(honest(said))  # raises if the client has closed
            return None
        return honest(said)

    last = ScriptedMaster(slowly)
    players = [ScriptedMaster(), ScriptedMaster(), last]
    with scripted(name, *players, master_timeout=5.0) as variant:
        lease = variant.acquire("order:1")
        assert left_alone.wait(60)
        assert variant.release(lease) is True
    assert [said.name for said in last.heard] == ["acquire", "release"]


# The breaker.


@both
def test_links_closed_while_idle_reconnect_before_they_are_needed(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    with joined(name, masters[:3]) as variant:
        links = [master.link for master in variant.links.masters]
        for master in masters[:3]:
            with master.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
                client.client_kill_filter(_type="pubsub", skipme=True)
        if name == "loop":
            # A running loop notices it by itself, given some time.
            until(lambda: not any(m.link in links for m in variant.links.masters), "links go")
        lease = variant.acquire("order:1")
        assert variant.release(lease) is True
        assert not any(master.link in links for master in variant.links.masters)


@pytest.mark.fault(without=("a lost link stays lost",))
@both
def test_a_lock_is_not_refused_because_routers_forgot_idle_links(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "IDLE", 0.0)
    with behind(masters[:3]) as proxies:
        urls = [proxy.url for proxy in proxies]
        with joined(name, masters[:3], urls=urls, connect_timeout=5.0) as variant:
            for proxy in proxies:
                proxy.forget()
            lease = variant.acquire("order:1")
            assert variant.release(lease) is True


@both
def test_idle_links_are_probed_before_routers_forget_them(
    name: str, masters: list[LocalMaster]
) -> None:
    with joined(name, masters[:3]) as variant:
        for master in variant.links.masters:
            assert master.link is not None
            connection = master.link.connection
            for option, value in KEEPALIVE.items():
                set_to = connection.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, option))
                assert set_to == value


# Lateness: a stall of this process loses no link.


def hold_the_gil(seconds: float) -> None:
    """Sleep like a C extension that does not release the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@contextmanager
def traffic(variant: Variant, threads: int = 3) -> Iterator[list[int]]:
    """Run threads that acquire and release locks in a loop; yield how often each did."""
    done = [0] * threads
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            lease = variant.acquire(f"order:{number}", wait=30.0)
            assert variant.release(lease) is not False
            done[number] += 1

    with ThreadPoolExecutor(threads) as pool:
        workers = [pool.submit(work, number) for number in range(threads)]

        def goes_on(times: int) -> None:
            seen = list(done)

            def all_went_on() -> bool:
                for worker in workers:
                    if worker.done():
                        worker.result()
                return all(b >= a + times for a, b in zip(seen, done, strict=True))

            until(all_went_on, f"{times} more turns of every thread", seconds=60)

        try:
            goes_on(1)
            yield done
            goes_on(6)
        finally:
            stop.set()
        for worker in workers:
            worker.result()


def markers(masters: list[LocalMaster]) -> list[object]:
    found: list[object] = []
    for master in masters:
        with master.client() as client:
            found.append(client.get("redlock:master"))
    return found


STALLS: dict[str, Callable[[Variant], None]] = {
    "the GIL is held": lambda variant: hold_the_gil(1.0),
    "the links are held": lambda variant: variant.inside(partial(time.sleep, 1.0)),
}


@pytest.mark.slow
@pytest.mark.fault(without=("only masters decide that a lock is over",))
@both
@pytest.mark.parametrize("stall", STALLS)
def test_a_stall_loses_no_link_and_marks_no_master(
    name: str, stall: str, masters: list[LocalMaster]
) -> None:
    """The mutex of the threads, or the loop, is held as by a callback that blocks."""
    with joined(name, masters[:3], master_timeout=0.4) as variant:
        links = [master.link for master in variant.links.masters]
        before = markers(masters[:3])
        with traffic(variant):
            STALLS[stall](variant)
        assert [master.link for master in variant.links.masters] == links
        assert all(master.failures == 0 for master in variant.links.masters)
        assert markers(masters[:3]) == before


@both
def test_a_stall_that_the_masters_shared_loses_no_link(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()
    stalled = 0.0

    def after_the_stall(said: Received) -> bytes:
        asked.set()
        go.wait(30)
        return honest(said)

    def stall() -> bool:
        nonlocal stalled
        stalled += 60.0  # longer than any patience
        variant.end_poll()
        return variant.links.lateness.running.stalled_since(0.0) > 50.0

    for module in (combiner, loop, sockets, backend_module):
        monkeypatch.setattr(module, "clock", lambda: clock() + stalled)
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(stalled * 1e9))
    player = ScriptedMaster(after_the_stall)
    with (
        scripted(name, player, master_timeout=4.0) as variant,
        ThreadPoolExecutor(1) as pool,
    ):
        taker = pool.submit(variant.acquire, "order:1", ttl=1000.0)
        assert asked.wait(30)
        until(stall, "a poll stalls, and the driver checks for late masters")
        go.set()
        assert variant.release(taker.result(30)) is True


def test_a_reader_wakes_when_another_thread_decides_its_round() -> None:
    with one_link(ThreadDriver) as (driver, masters, _), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver._take, next(masters.acquire()), False, None)
        until(lambda: driver.combiner.reader, "it reads")
        exchange = driver.combiner.reader
        assert isinstance(exchange, Exchange)
        try:
            with driver.combiner.mutex:  # nothing comes on the link, which would wake it as well
                exchange.cast(0, failed("lost"))
            reading.result(20)
        finally:
            driver.poller.wake()


@both
def test_a_master_is_connected_to_although_no_thread_could_be_started(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process at its limit of threads loses its links; they come back when it may have more."""
    refused: list[str] = []
    start = threading.Thread.start

    def refusal(variant: Variant) -> str:
        try:
            variant.release(variant.acquire("order:2"))
        except QuorumUnreachable as error:
            return str(error)
        return ""

    def fail(self: threading.Thread) -> None:
        if not self.name.startswith("redlock-"):
            return start(self)
        refused.append(self.name)
        raise RuntimeError("can't start new thread")

    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(master.port)) for master in masters]
        urls = [proxy.url for proxy in proxies]
        variant = stack.enter_context(
            joined(name, masters, urls=urls, max_ttl=60.0, master_timeout=1.0)
        )
        lease = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for proxy in proxies:
                proxy.cut()
            until(lambda: "no thread could be started" in refusal(variant), "a refusal")
            until(lambda: refusal(variant) and len(set(refused)) == len(masters), "all links lost")
        # Without another round: nothing but time revisits the masters.
        variant.wait_usable(len(masters))
        assert variant.extend(lease)[0] is LeaseState.RENEWED
        assert variant.release(lease)


def test_the_first_lock_is_acquired_after_no_thread_could_be_started(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    backend = make_backend([master.url for master in masters])
    with open_variant("threads", backend) as variant:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _ in range(2):
                with pytest.raises(QuorumUnreachable, match="no thread could be started"):
                    variant.acquire("order:1")
        variant.release(variant.acquire("order:1", wait=60.0))
        variant.wait_usable(len(masters))
        assert backend.thread_driver().tender.is_started


def test_an_error_in_the_tender_does_not_end_it(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        sys.exit(3)

    with joined("threads", masters, master_timeout=1.0) as variant:
        tender = variant.backend.thread_driver().tender
        with monkeypatch.context() as patch:
            patch.setattr(variant.links.changes, "retry", fail)
            tender.wake()
            assert failed.wait(60)
            until(lambda: "the tender thread failed" in caplog.text, "the tender's error")
        assert tender.thread is not None
        assert tender.thread.is_alive()
        variant.release(variant.acquire("order:1"))
        variant.settle()
