"""docs/how-to/deploy.md and upgrade.md: the configuration and the settings work as written."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.db.migrations.loader import MigrationLoader

from redlock_django import lock
from redlock_django.conf.settings import load
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import held_locks
from redlock_django.testing.masters import local_masters
from redlock_django.testing.processes import ProcessGroup
from tests.authority import make_certificates
from tests.operate.commands import run
from tests.pages import Page
from tests.ports import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

DEPLOY, ACL = Page("docs/how-to/deploy.md"), Page("docs/reference/acl.md")
SETTINGS, SPREAD = DEPLOY.blocks()
# The server of the tests has no TLS, and no users of its own.
ELSEWHERE = ("tls-", "port", "aclfile")


def directives() -> list[tuple[str, str]]:
    [block] = DEPLOY.blocks("text")
    return [(name, value) for name, value in (line.split(" ", 1) for line in block.splitlines())]


@pytest.mark.live
def test_a_server_accepts_the_configuration() -> None:
    lines = [
        (name, value.strip('"')) for name, value in directives() if not name.startswith(ELSEWHERE)
    ]
    arguments = [part for name, value in lines for part in (f"--{name}", value)]
    with local_masters(1, args=arguments) as [master], master.client() as client:
        for name, value in lines:
            assert client.config_get(name) == {name: value}


def test_the_settings_pass_the_checks_of_a_deployment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKS_PASSWORD", "of a test")
    names: dict[str, Any] = {}
    exec(SETTINGS, names)
    settings.REDLOCK = names["REDLOCK"]
    load("default")
    assert run_checks(tags=["redlock"], include_deployment_checks=True) == []


def test_names_are_spread_over_aliases(settings: Settings) -> None:
    names: dict[str, Any] = {}
    exec(SPREAD, names)
    memory = "redlock_django.backends.memory.MemoryBackend"
    settings.REDLOCK = {
        alias: {"BACKEND": memory, "MASTERS": [f"redis://{alias}-{n}" for n in (1, 2, 3)]}
        for alias in names["ALIASES"]
    }
    found: dict[str, list[int]] = {alias: [] for alias in names["ALIASES"]}
    for pk in range(100):
        with names["spread_lock"](f"order:{pk}", ttl=5) as held:
            assert [one.resource for one in held_locks(held.using).locks] == [f"order:{pk}"]
        found[held.using].append(pk)
    # Literal on purpose: the same in every process and version of Python.
    assert found["default"][:8] == [4, 5, 6, 7, 10, 11, 12, 13]
    assert [len(share) for share in found.values()] == [50, 50]


def test_every_migration_can_be_undone() -> None:
    migrations = MigrationLoader(None).disk_migrations
    ours = [migration for (app, _), migration in migrations.items() if app == "redlock_django"]
    assert [migration.name for migration in ours] == ["0001_initial"]
    assert all(operation.reversible for migration in ours for operation in migration.operations)


# The whole page, on servers with TLS. The server of the other tests is built without it.


# TLS handshakes take processor time, and the machine may be loaded.
TLS_TIMEOUTS = {"MASTER_TIMEOUT": 0.9, "CONNECT_TIMEOUT": 60.0}


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with `ca.pem`, and `server.pem` and `server.key` for localhost."""
    return make_certificates(tmp_path, "server", "DNS:localhost")


@pytest.fixture
def ports(certificates: Path) -> Iterator[list[int]]:
    """Three servers with the configuration of the page, and the users of the page about ACLs."""
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    if server is None:
        pytest.skip("no server with TLS is installed (such as redis-server of Debian)")
    users = [
        f"user {user}\n" for user in re.findall(r"ACL SETUSER ((?:shop|operator) .*)", ACL.text)
    ]
    lines = "".join([*users, "user default off\n"]).replace(">PASSWORD", ">canary-of-tls")
    (certificates / "users.acl").write_text(lines)
    configuration = "".join(f"{name} {value}\n" for name, value in directives())
    configuration = re.sub("/etc/valkey/(tls/)?", f"{certificates}/", configuration)
    found = [free_port() for _ in range(3)]
    with ProcessGroup("redlock-tls-") as processes:
        for port in found:
            own = certificates / f"{port}.conf"
            own.write_text(configuration.replace("tls-port 6379", f"tls-port {port}"))
            process = processes.spawn([server, str(own)], cwd=certificates)
            until(partial(_listens, port, process), "the server listens")
        yield found


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server does not accept the configuration"
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.nightly
@pytest.mark.live
@pytest.mark.django_db
def test_the_page_on_servers_with_tls(
    ports: list[int], certificates: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlock_django.backends.redis.backend.INSPECTION_TIMEOUT", 60.0)
    for name in ("LOCKS_PASSWORD", "LOCKS_OPERATOR_PASSWORD"):
        monkeypatch.setenv(name, "canary-of-tls")
    example = SETTINGS.replace("/etc/ssl/locks-ca.pem", str(certificates / "ca.pem"))
    for number, port in enumerate(ports, 1):
        example = example.replace(f"locks-{number}.example.com:6379", f"localhost:{port}")
    names: dict[str, Any] = {}
    exec(example, names)
    settings.REDLOCK = {
        alias: {**section, **TLS_TIMEOUTS} for alias, section in names["REDLOCK"].items()
    }
    section = settings.REDLOCK["default"]
    try:
        shown = []
        for command in re.findall(r"^    python manage\.py (.*)$", DEPLOY.text, re.MULTILINE):
            ran = run(*command.split())
            assert ran.status == 0, ran
            shown.append(ran.out + ran.said)
        assert "3 of 3 masters are counted, 2 are needed" in shown[-1]
        with lock("order:1") as held:
            held.verify()
        for wrong, reason in (
            ({"ssl_ca_certs": None}, "certificate verify failed"),
            ({"password": "wrong"}, "refused the password"),
        ):
            options = {**section["OPTIONS"], **wrong}
            settings.REDLOCK = {"default": {**section, "OPTIONS": options}}
            ran = run("redlock_status")
            assert (ran.status, ran.said.count(reason)) == (3, 3), ran
            assert "canary-of-tls" not in ran.out + ran.said
    finally:
        locks.close()
