"""PROFILE "failover" with SENTINELS: a real Sentinel promotes a replica while locks are held."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from redis import Redis, RedisError

from redlock_django import leader, lock
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import LockLost, QuorumUnreachable
from redlock_django.locking.caller import held_leases
from redlock_django.locking.services import locks
from redlock_django.testing.masters import find_server, local_masters, reserve_ports
from redlock_django.testing.processes import ProcessGroup
from redlock_django.wire.servers.trust_declaration import declare, read_state
from tests.losses import ends_lost
from tests.operate.commands import run
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

PASSWORD = "canary"


class Service:
    """A primary, its replica and a Sentinel that knows them as the service "Locks"."""

    def __init__(self, servers: list[LocalMaster], port: int) -> None:
        self.servers = servers
        self.port = port

    @property
    def sentinel(self) -> Redis:
        """A client of the Sentinel."""
        return Redis(port=self.port, password=PASSWORD, socket_timeout=30)

    @property
    def primary(self) -> int:
        """The port of the primary, as the Sentinel reports it."""
        with self.sentinel as sentinel:
            found: Any = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "Locks")
        return int(found[1])

    def kill_primary(self) -> None:
        """Kill the primary; only from here on the Sentinel replaces one that is silent."""
        with self.sentinel as sentinel:
            sentinel.sentinel_set("Locks", "down-after-milliseconds", "1000")
        self.servers[0].kill()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the section of an alias; the first Sentinel does not answer."""
        return {
            "MASTERS": ["redis://Locks/0"],
            "OPTIONS": {"password": PASSWORD},
            "PROFILE": "failover",
            "SENTINELS": ["redis://127.0.0.1:9", f"redis://127.0.0.1:{self.port}"],
            "SENTINEL_OPTIONS": {"password": PASSWORD},
            "TTL": 50,
            "MASTER_TIMEOUT": 5,
            "CONNECT_TIMEOUT": 10,
            **more,
        }


def client(server: LocalMaster) -> Redis:
    return Redis(port=server.port, password=PASSWORD, socket_timeout=30)


@contextmanager
def watched() -> Iterator[Service]:
    with ExitStack() as stack:
        servers = stack.enter_context(
            local_masters(2, args=["--repl-diskless-sync-delay", "0", "--hz", "10"])
        )
        for server in servers:  # not earlier: `local_masters` waits for an answer to PING
            with server.client() as admin:
                admin.config_set("masterauth", PASSWORD, "requirepass", PASSWORD)
        with client(servers[1]) as replica:
            replica.replicaof("127.0.0.1", str(servers[0].port))
            until(lambda: replica.info()["master_link_status"] == "up", "in step", seconds=60)
        processes = stack.enter_context(ProcessGroup("redlock-sentinel-"))
        [port] = reserve_ports(1, stack)
        written = processes.directory / "sentinel.conf"
        written.write_text(
            f"port {port}\nbind 127.0.0.1\nrequirepass {PASSWORD}\ndir {processes.directory}\n"
            f"sentinel monitor Locks 127.0.0.1 {servers[0].port} 1\n"
            f"sentinel auth-pass Locks {PASSWORD}\n"
            "sentinel down-after-milliseconds Locks 600000\n"
            "sentinel failover-timeout Locks 20000\n"
        )
        processes.spawn([find_server(), str(written), "--sentinel"])
        service = Service(servers, port)

        def knows_the_replica() -> bool:
            with service.sentinel as sentinel:
                found: Any = sentinel.sentinel_slaves("Locks")
                return [one["master-link-status"] for one in found] == ["ok"]

        until(lambda: quiet(knows_the_replica), "the Sentinel knows the replica", seconds=60)
        yield service


def quiet(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except RedisError:
        return False


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    with watched() as service:
        settings.REDLOCK = {"default": service.settings()}
        assert run("redlock_init").status == 0
        yield service


def renewed(held: Any) -> bool:
    """Return whether a lock could be extended; before, less than 49 s of it are left."""
    return bool(held.extend(50) > 49)


def refusal() -> str:
    with pytest.raises(QuorumUnreachable) as refused, lock("free"):
        pass
    return str(refused.value)


def trust_now() -> None:
    """Declare the primary trusted now, as an operator may."""
    store = locks["default"].settings.store
    assert isinstance(store, RedlockSettings)
    state = read_state(store.addresses[0], store.deployment, frozenset(), 10.0)
    declare(state, store.deployment, 10.0, "trust")


@pytest.mark.slow
def test_locks_permits_a_waiter_and_leaders_outlive_a_killed_primary(
    service: Service, tmp_path: Path
) -> None:
    served = threading.Event()
    end = tmp_path / "end"
    command = ["sh", "-c", f"until [ -e {end} ]; do sleep 0.1; done"]

    def wait() -> None:
        with lock("order:1", wait=600):
            served.set()

    with (
        ThreadPoolExecutor(1) as pool,
        ExitStack() as after,
        leader("beat") as term,
        lock("export", limit=2) as permit,
        ExitStack() as order,
    ):
        after.callback(end.touch)
        led = pool.submit(call_command, "lead", "job", "--", *command)
        held = order.enter_context(lock("order:1"))
        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        with client(service.servers[0]) as primary:
            until(lambda: primary.exists("redlock:queue:order:1"), "it waits")
            until(lambda: primary.exists("redlock:lock:job"), "the command leads")
            assert primary.wait(1, 30_000) == 1
        service.kill_primary()
        until(lambda: service.primary == service.servers[1].port, "it is promoted", seconds=120)
        until(lambda: renewed(held), "its holder goes on", seconds=120)
        assert renewed(permit)
        assert renewed(term._lock)
        term.ensure_held()
        (leading,) = held_leases(locks["default"].backend, "job")
        assert leading.extend(50) is LeaseState.RENEWED
        assert not led.done()
        assert re.search(r"Locks: restarted: trusted in 7\d s", refusal())
        ran = run("redlock_status")
        assert ran.status == 3
        assert "Locks may have forgotten locks, and is not new (it stores 'redlock:" in ran.said
        assert re.search(r"'\): trusted in \d+ s; at once only with ", ran.said)
        order.close()
        assert not served.is_set(), "the new primary grants nothing yet"
        trust_now()
        assert served.wait(120)
        waiter.join(60)
        end.touch()
        led.result(60)  # with another status it raises
        with lock("free"):
            pass


@pytest.mark.slow
def test_async_locks_permits_and_a_waiter_outlive_a_failover_on_live_links(
    service: Service,
) -> None:
    async def wait(served: asyncio.Event) -> None:
        async with lock("kept", wait=600):
            served.set()

    async def hold() -> None:
        async with lock("kept") as kept, lock("export", limit=2) as permit:
            served = asyncio.Event()
            waiter = asyncio.create_task(wait(served))
            with client(service.servers[0]) as primary:
                await until_async(partial(is_queued, primary))
            with client(service.servers[0]) as primary:
                assert primary.wait(1, 30_000) == 1
            with service.sentinel as sentinel:
                assert sentinel.execute_command("SENTINEL", "FAILOVER", "Locks")
            await until_async(is_promoted)
            with client(service.servers[0]) as former:  # as the Sentinel does some seconds later
                former.replicaof("127.0.0.1", str(service.servers[1].port))
                former.client_kill_filter(_type="normal", skipme=True)
            await until_async(partial(renewed_async, kept))
            assert await renewed_async(permit)
            with pytest.raises(QuorumUnreachable, match="trusted in 7"):
                async with lock("free"):
                    pass
            with client(service.servers[1]) as promoted:
                promoted.delete("redlock:lock:kept")  # as if it had not been replicated
            with pytest.raises(LockLost):
                await kept.aextend(50)
            assert not served.is_set(), "the new primary grants nothing yet"
            await asyncio.to_thread(trust_now)
            await waiter

    async def is_queued(primary: Redis) -> bool:
        return bool(primary.exists("redlock:queue:kept"))

    async def is_promoted() -> bool:
        return service.primary == service.servers[1].port

    async def renewed_async(held: Any) -> bool:
        return bool(await held.aextend(50) > 49)

    async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)

    async def bounded() -> None:
        with ends_lost():
            await asyncio.wait_for(hold(), 300)
        await locks.aclose()

    asyncio.run(bounded())


def test_a_service_that_cannot_be_found_is_explained(service: Service, settings: Settings) -> None:
    server = f"redis://127.0.0.1:{service.servers[1].port}"
    for changed, said in (
        ({"SENTINELS": ["redis://127.0.0.1:9", server]}, "is not a Sentinel"),
        ({"MASTERS": ["redis://locks/0"]}, "does not know the service 'locks'"),
        ({"SENTINEL_OPTIONS": {"password": "wrong"}}, "refused the password"),
        ({"SENTINELS": ["redis://127.0.0.1:9"]}, "Sentinel 127.0.0.1:9 refused the connection"),
    ):
        settings.REDLOCK = {"default": service.settings(**changed)}
        text = refusal()
        assert "cannot be found: Sentinel 127.0.0.1:9 refused the connection" in text
        assert said in text
        assert PASSWORD not in text
