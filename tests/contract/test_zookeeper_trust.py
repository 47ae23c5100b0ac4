"""ZooKeeper servers that may have forgotten locks: nothing is granted until these have ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from kazoo.client import KazooClient

from redlock_django import lock
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests import inspecting
from tests.conftest import installed
from tests.contract.stores import HOLDER, ZOOKEEPER, granted, zookeeper_of
from tests.waiting import until
from tests.zookeeper import ZooKeeperServer, local_zookeeper

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server that forgets."""
    with installed(local_zookeeper()) as (server,):
        yield server


def aliases(**section: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of three aliases, whose sessions are those of three processes."""
    return dict.fromkeys(("default", "other", "third"), section)


@pytest.fixture
def section(
    server: ZooKeeperServer, settings: Settings, request: pytest.FixtureRequest
) -> Iterator[dict[str, Any]]:
    """The settings of each alias."""
    root = f"/{request.node.name.encode().hex()[-40:]}"
    section = {"BACKEND": ZOOKEEPER, "HOSTS": [server.host], "ROOT": root, "ZOOKEEPER_TIMEOUT": 30}
    settings.REDLOCK = aliases(**section)
    yield section
    locks.close()


@pytest.mark.slow
def test_servers_that_lost_their_data_grant_nothing_until_all_locks_have_ended(
    section: dict[str, Any], settings: Settings, server: ZooKeeperServer
) -> None:
    settings.REDLOCK = aliases(**section, MAX_TTL=4, TTL=4)
    zookeeper_of().declare_new()
    held = lock("order:1", renew=False)
    held.acquire()
    server.forget()
    forgotten = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"it has lost its data: trusted in \d s") as refused:
        zookeeper_of("other").acquire(("order:1",), 4, 0, HOLDER)
    assert 0 < (refused.value.retry_after or 0) <= 4.1
    until(partial(granted, "other"), what="the lock is granted")
    assert time.monotonic() > forgotten + 4
    assert not held.remaining()


@pytest.mark.slow
def test_a_process_goes_on_with_servers_that_have_seen_less_than_it(
    section: dict[str, Any], settings: Settings, server: ZooKeeperServer
) -> None:
    """ZooKeeper refuses its session for ever."""
    settings.REDLOCK = aliases(**section, SESSION_TIMEOUT=2)
    zookeeper_of().declare_new()
    for _ in range(20):
        assert granted()
    server.forget()
    zookeeper_of("other").declare_new()
    until(granted, what="the process that was connected before is granted locks")


@pytest.mark.parametrize("what", ["root", "locks"])
def test_a_deleted_tree_is_not_trusted(
    section: dict[str, Any], server: ZooKeeperServer, what: str
) -> None:
    zookeeper_of().declare_new()
    lease = zookeeper_of().acquire(("order:1",), 30, 0, HOLDER)
    assert zookeeper_of("other").release(zookeeper_of("other").acquire(("order:2",), 30, 0, HOLDER))
    client = KazooClient(hosts=server.host)
    client.start()
    client.delete(getattr(zookeeper_of().session.tree, what), recursive=True)
    client.stop()
    client.close()
    for alias in ("third", "other", "third", "other"):  # the first makes the tree again
        with pytest.raises(StoreUnavailable, match="has lost its data") as refused:
            zookeeper_of(alias).acquire(("order:1",), 30, 0, HOLDER)
        assert (refused.value.retry_after or 0) > 50
    assert zookeeper_of().extend(lease, 30)[0] is LeaseState.LOST
    assert zookeeper_of().declare_new() is True
    again = zookeeper_of("other").acquire(("order:1",), 30, 0, HOLDER)
    assert again.fences[0] > lease.fences[0]


def test_redlock_init_declares_new_servers(
    section: dict[str, Any], server: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreUnavailable, match=r"new: run 'manage\.py redlock_init'"):
        zookeeper_of().acquire(("order:1",), 30, 0, HOLDER)
    with pytest.raises(CommandError):
        call_command("redlock_status")
    status = capsys.readouterr()
    assert "untrusted" in status.out
    assert "new: run 'manage.py redlock_init'" in status.err
    call_command("redlock_init")
    assert capsys.readouterr().out == f"{server.host}: trusted now\n"
    assert granted()
    call_command("redlock_status")
    call_command("redlock_init", "--wait", "1")
    assert f"{server.host}: already trusted\n" in capsys.readouterr().out


def test_the_status_of_servers_that_no_process_has_used(section: dict[str, Any]) -> None:
    (health,) = inspecting.health(zookeeper_of())
    assert not health.counted
    assert health.health is not None
    assert health.health.ready_in == 60
    zookeeper_of().declare_new()
    (health,) = inspecting.health(zookeeper_of())
    assert health.counted


def test_redlock_init_without_a_server(
    section: dict[str, Any], settings: Settings, server: ZooKeeperServer
) -> None:
    section = {**section, "HOSTS": ["127.0.0.1:1"], "ZOOKEEPER_TIMEOUT": 0.2}
    settings.REDLOCK = {"default": section}
    with pytest.raises(CommandError, match=r"Nothing was changed after 0.3 s:\n.*127.0.0.1:1"):
        call_command("redlock_init", "--wait", "0.3")
    with pytest.raises(CommandError, match="use redlock_init without --force"):
        call_command("redlock_init", "--reconfigure")


@pytest.mark.nightly
def test_a_server_that_only_reads_grants_nothing(settings: Settings) -> None:
    servers = local_zookeeper(3, java="-Dreadonlymode.enabled=true")
    with installed(servers) as (first, second, third):
        section = {"BACKEND": ZOOKEEPER, "HOSTS": [one.host for one in (first, second, third)]}
        settings.REDLOCK = {"default": {**section, "SESSION_TIMEOUT": 4}}
        until(lambda: zookeeper_of().declare_new() is not None)
        assert granted()
        second.kill()
        third.kill()
        until(lambda: b"Mode: read-only" in first.ask(), what="the server only reads")
        assert not granted()
        locks.close()
        assert not granted(), "nor to a new process"
        locks.close()
