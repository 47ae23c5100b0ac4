"""A real Sentinel over a primary and its replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis, RedisError

from redlock_django.testing.masters import LocalMaster, find_server, local_masters, reserve_ports
from redlock_django.testing.processes import ProcessGroup
from tests.waiting import until

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


def configure(server: LocalMaster) -> None:
    """Set the password of a server that has just started, which must answer PING without one."""
    with server.client() as admin:
        admin.config_set("masterauth", PASSWORD, "requirepass", PASSWORD)


def client(server: LocalMaster) -> Redis:
    return Redis(port=server.port, password=PASSWORD, socket_timeout=30)


@contextmanager
def watched() -> Iterator[Service]:
    """Start the servers and a Sentinel, which knows the replica."""
    with ExitStack() as stack:
        servers = stack.enter_context(
            local_masters(2, args=["--repl-diskless-sync-delay", "0", "--hz", "10"])
        )
        for server in servers:
            configure(server)
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
            "sentinel down-after-milliseconds Locks 1000\n"
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
