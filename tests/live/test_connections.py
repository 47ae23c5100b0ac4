"""Connections: passwords, ACLs, TLS, Unix sockets, and links that close with their event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.servers.acl import LOCKS, least_acl
from tests.live.linked import has_sleepers
from tests.programs import started
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.wire.test_waiters import ask_once, waiting
from tests.wire.variants import Variant, both, joined, make_backend, open_variant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


PASSWORD = "p@ss/w:rd ?#%"
ACL = least_acl("redlock").split()


def use_a_lock(variant: Variant) -> None:
    """Acquire, be refused, extend and release."""
    lease = variant.acquire("order:1", "user:7", wait=60.0)
    with pytest.raises(NotAcquired):
        variant.acquire("user:7")
    state, lease = variant.extend(lease)
    assert state is LeaseState.RENEWED
    assert variant.release(lease) is True
    variant.wait_usable(len(variant.links.masters))


@contextmanager
def user(master: LocalMaster, *rules: str) -> Iterator[None]:
    """Define the ACL user "redlock" on a master while the block runs."""
    with master.client() as client:
        client.execute_command("ACL", "SETUSER", "redlock", "reset", "on", f">{PASSWORD}", *rules)
        try:
            yield
        finally:
            client.execute_command("ACL", "DELUSER", "redlock")


def as_user(master: LocalMaster, password: str = PASSWORD) -> str:
    return f"redis://redlock:{quote(password, safe='')}@127.0.0.1:{master.port}/0"


def test_a_user_with_the_acl_of_a_version_without_queues(masters: list[LocalMaster]) -> None:
    """Locks are acquired and released, and a waiter acquires the lock in the end."""
    rules = ["~redlock:*", "-@all", *(f"+{command}" for command in LOCKS)]
    with ExitStack() as stack:
        for master in masters[:3]:
            stack.enter_context(user(master, *rules))
        backend = make_backend([as_user(master) for master in masters[:3]])
        variant = stack.enter_context(open_variant("threads", backend))
        use_a_lock(variant)
        variant.acquire("order:2", ttl=0.3, wait=60.0)
        assert variant.release(variant.acquire("order:2", wait=60.0)) is True


def test_resp3_is_not_tried_with_protocol_2(masters: list[LocalMaster]) -> None:
    """A proxy that does not know HELLO may close the connection."""
    for protocol, pushes in ((2, False), (3, True)):
        urls = [f"{master.url}?protocol={protocol}" for master in masters[:1]]
        with joined("threads", masters[:1], urls=urls) as variant:
            use_a_lock(variant)
            (master,) = variant.links.masters
            assert master.link is not None
            assert master.link.pushes is pushes


@pytest.mark.fault(without=("cluster nodes vote",))
def test_a_wrong_password_and_missing_rights_are_reported_without_secrets(
    masters: list[LocalMaster], caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        stack.enter_context(user(masters[0], *ACL))
        stack.enter_context(user(masters[1], *ACL, "-info"))
        stack.enter_context(user(masters[2], "~other:*", *ACL[1:]))
        wrong = as_user(masters[0], "secret-but-wrong")
        backend = make_backend([wrong, as_user(masters[1]), as_user(masters[2])])
        variant = stack.enter_context(open_variant("threads", backend))
        with pytest.raises(QuorumUnreachable):
            variant.acquire("order:1")
        until(
            lambda: all(m.failures for m in variant.links.masters),
            "a connection to each master has failed",
        )
        with pytest.raises(QuorumUnreachable) as caught:
            variant.acquire("order:1")
        said = list(caught.value.tally.values())
        assert said[0] == "refused the password"
        assert said[1].startswith("its ACL forbids 'info'")
        assert "ACL" in said[2] or "NOPERM" in said[2]
        shown = f"{caught.value} {caplog.text} {backend.addresses!r} {variant.links.masters!r}"
    assert "secret-but-wrong" not in shown
    assert PASSWORD not in shown


# TLS. The bundled server does not support it, so a proxy terminates TLS in front of each master.


# TLS handshakes take processor time, and the machine may be loaded.
TLS_TIMEOUTS: dict[str, Any] = {"master_timeout": 4.0, "connect_timeout": 10.0}


@contextmanager
def behind_tls(authority: Path, masters: Sequence[LocalMaster]) -> Iterator[list[FaultProxy]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "master.pem", authority / "master.key")
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(m.port, tls=context)) for m in masters]


@contextmanager
def over_tls(
    name: str, authority: Path, masters: Sequence[LocalMaster]
) -> Iterator[tuple[Variant, list[FaultProxy]]]:
    """Yield a variant that reaches three masters over TLS, and the proxies between them."""
    with behind_tls(authority, masters[:3]) as proxies:
        options = {"ssl_ca_certs": str(authority / "ca.pem")}
        urls = [proxy.url for proxy in proxies]
        backend = make_backend(urls, options=options, **TLS_TIMEOUTS)
        with open_variant(name, backend) as variant:
            variant.start()
            variant.wait_usable(3)
            yield variant, proxies


@both
def test_tls_with_many_threads_small_pieces_and_a_lost_connection(
    name: str, masters: list[LocalMaster], authority: Path
) -> None:
    with over_tls(name, authority, masters) as (variant, proxies), ThreadPoolExecutor(8) as pool:
        use_a_lock(variant)

        def work(number: int) -> None:
            for _ in range(10):
                assert variant.release(variant.acquire(f"order:{number}")) is True

        list(pool.map(work, range(8)))
        proxies[0].slices = True
        list(pool.map(work, range(8)))
        proxies[1].cut()
        variant.release(variant.acquire("order:1", wait=60.0))
        variant.wait_usable(3)


@both
def test_a_reset_tls_link_does_not_break_other_tls_connections(
    name: str, masters: list[LocalMaster], authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=authority / "ca.pem")
    with over_tls(name, authority, masters) as (variant, proxies):
        address = ("127.0.0.1", proxies[2].port)
        with (
            socket.create_connection(address) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as of_the_application,
        ):
            of_the_application.setblocking(False)
            variant.settle()
            caplog.set_level(logging.INFO, "redlock_django")
            proxies[0].cut()
            assert variant.release(variant.acquire("order:1")) is True
            with pytest.raises(ssl.SSLWantReadError):
                variant.inside(lambda: of_the_application.recv(1))
            variant.wait_usable(3)
            logged = [line for line in caplog.messages if "conne" in line]
            assert all(str(proxies[0].port) in line for line in logged), logged


@both
def test_an_openssl_error_of_the_application_does_not_break_a_tls_link(
    name: str, masters: list[LocalMaster], authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with pytest.raises(ValueError, match="unknown object"):  # stays in OpenSSL's error queue
            ssl.Purpose.fromname("none of that name")

    with over_tls(name, authority, masters) as (variant, _):
        variant.settle()
        caplog.set_level(logging.INFO, "redlock_django")
        variant.inside(fail)
        lease = variant.acquire("order:1")
        variant.inside(fail)
        assert variant.release(lease) is True
        variant.settle()
        assert caplog.messages == []


@both
def test_a_large_command_over_tls(name: str, masters: list[LocalMaster], authority: Path) -> None:
    with over_tls(name, authority, masters) as (variant, _):
        lease = variant.acquire("order:1", holder='{"app":"' + "x" * 2_000_000 + '"}')
        assert variant.release(lease) is True


@both
def test_a_release_calls_a_waiter_over_tls(
    name: str, masters: list[LocalMaster], authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_once(monkeypatch)
    with over_tls(name, authority, masters) as (theirs, proxies):
        options = {"ssl_ca_certs": str(authority / "ca.pem")}
        urls = [proxy.url for proxy in proxies]
        with joined("threads", masters[:3], urls=urls, options=options) as ours:
            lease = ours.acquire("order:1")
            with waiting(theirs, masters[:3]) as taker:
                ours.release(lease)
                won = taker.result(60)
            assert theirs.release(won) is True


def test_a_certificate_of_an_unknown_authority_is_refused(
    masters: list[LocalMaster], authority: Path
) -> None:
    with behind_tls(authority, masters[:1]) as proxies:
        backend = make_backend([proxies[0].url], **TLS_TIMEOUTS)
        with (
            open_variant("threads", backend) as variant,
            pytest.raises(QuorumUnreachable) as caught,
        ):
            variant.acquire("order:1")
        assert "could not be reached" in str(caught.value)


# Event loops.

LOOPS = """
import asyncio, gc, logging, sys, threading, time
from asgiref.sync import async_to_sync
from tests.wire.variants import HOLDER, make_backend

urls = sys.argv[1:]
backend = make_backend(urls, options={"client_name": "looped"})
unclean = []
# In debug mode asyncio also warns about slow callbacks, which a loaded machine has.
logging.getLogger("asyncio").setLevel(logging.ERROR)

async def go():
    lease = await backend.aacquire(("order:1",), 8.0, 60.0, HOLDER)
    tasks = [backend.aacquire((f"order:{n}",), 8.0, 0.0, HOLDER) for n in range(2, 6)]
    leases = await asyncio.gather(*tasks)
    for held in leases:
        assert await backend.arelease(held) is True
    if len(asyncio.all_tasks()) != 1:
        unclean.append(asyncio.all_tasks())
    return await backend.arelease(lease)

async def left_open():
    # The loop ends while the lock is held and its release is being sent.
    backend.post_release(await backend.aacquire(("order:1",), 8.0, 60.0, HOLDER))

for _ in range(5):
    assert asyncio.run(go()) is True
for _ in range(5):
    assert async_to_sync(go)() is True
for _ in range(3):
    asyncio.run(left_open())
with asyncio.Runner() as runner:
    for _ in range(3):
        assert runner.run(go()) is True
gc.collect()
assert not unclean, unclean
assert len(backend._loops) == 0, list(backend._loops)
print("clean", flush=True)
sys.stdin.readline()
"""


def names(masters: Sequence[LocalMaster]) -> list[str]:
    found = []
    for master in masters:
        with master.client() as client:
            found += [entry["name"] for entry in client.client_list()]
    return found


@pytest.mark.slow
def test_each_event_loop_closes_its_links_and_releases_its_locks(
    masters: list[LocalMaster],
) -> None:
    urls = [master.url for master in masters[:3]]
    strict = ("-X", "dev", "-W", "error")
    with started(LOOPS, *urls, ready="clean", flags=strict) as process:
        # The process still runs, so it was the end of each loop that closed its links.
        until(lambda: "looped" not in names(masters[:3]), "the links are closed")
        for master in masters[:3]:
            with master.client() as client:
                assert list(client.scan_iter(match="redlock:lock:*")) == []
        _, errors = process.communicate("\n", timeout=90)
        assert process.returncode == 0
        assert errors == ""


@both
def test_closing_closes_every_link(name: str, masters: list[LocalMaster]) -> None:
    backend = make_backend([m.url for m in masters[:3]], options={"client_name": "closing"})
    with open_variant(name, backend) as variant:
        variant.start()
        variant.wait_usable(3)
        assert names(masters[:3]).count("closing") == 3
    until(lambda: "closing" not in names(masters[:3]), "the links are closed")


def test_a_backend_that_was_closed_connects_no_more(masters: list[LocalMaster]) -> None:
    """A thread may come to it at the moment at which another one closes it."""
    backend = make_backend([m.url for m in masters[:3]], options={"client_name": "closed"})
    backend.close()
    with pytest.raises(QuorumUnreachable):
        backend.acquire(("order:1",), 5.0, 0.0, "{}")
    assert "closed" not in names(masters[:3])


def test_a_loop_that_is_closed_while_a_task_waits_keeps_no_link(masters: list[LocalMaster]) -> None:
    backend = make_backend([m.url for m in masters[:3]], options={"client_name": "unfinished"})
    loop = asyncio.new_event_loop()

    async def wait() -> asyncio.Task[Any]:
        await backend.aacquire(("order:1",), 5.0, 0.0, "{}")
        waiting = asyncio.create_task(backend.aacquire(("order:1",), 5.0, 60.0, "{}"))
        links = backend.loop_driver().links
        await asyncio.to_thread(until, lambda: has_sleepers(links), "a task waits")
        return waiting

    async def connect() -> None:
        await backend.loop_driver().start()

    waiting = loop.run_until_complete(wait())
    loop.close()
    assert "unfinished" in names(masters[:3])
    asyncio.run(connect())
    until(lambda: "unfinished" not in names(masters[:3]), "the links are closed")
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_forgotten_loop_is_collected_with_its_links(masters: list[LocalMaster]) -> None:
    code = LOOPS.partition("for _ in range(5)")[0] + (
        "import select\n"
        "loop = asyncio.new_event_loop()\n"
        "assert loop.run_until_complete(go()) is True\n"
        "loop.__class__.__del__ = lambda self: None\n"  # suppresses asyncio's own warning
        "del loop\n"
        "until = time.monotonic() + 60\n"  # a connecting thread may still refer to the loop
        "while len(backend._loops) and time.monotonic() < until:\n"
        "    gc.collect()\n"
        "assert not len(backend._loops)\n"
        "print('clean', flush=True)\n"
        "while not select.select([sys.stdin], [], [], 0.01)[0]:\n"
        "    gc.collect()\n"  # such a thread may also refer to the links, for longer
    )
    with started(code, *(master.url for master in masters[:3]), ready="clean") as process:
        until(lambda: "looped" not in names(masters[:3]), "the links are closed")
        process.communicate("\n", timeout=90)
