"""`manage.py redlock_masters`: masters for development."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, execute_from_command_line
from pytest_django import Settings
from redis import Redis

from redlock_django.management.commands import redlock_masters
from redlock_django.testing.masters import LocalMaster
from tests.ports import free_port


def error(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as raised:
        call_command("redlock_masters", *arguments)
    return raised.value


@pytest.mark.live
def test_masters_run_until_ctrl_c() -> None:
    ports = [free_port(), free_port()]
    command = [sys.executable, "manage.py", "redlock_masters"]
    with subprocess.Popen(
        [*command, "--ports", f"{ports[0]},{ports[1]}"], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(running.stdout.readline())
            assert lines[-1], "it has ended"
        scope: dict[str, Any] = {}
        text = "".join(lines)
        exec(text[text.index("REDLOCK = ") : text.index("Just started")], scope)
        urls = scope["REDLOCK"]["default"]["MASTERS"]
        assert urls == [f"redis://127.0.0.1:{port}/0" for port in ports]
        for url in urls:
            with Redis.from_url(url) as client:
                assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port))


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = error("--ports", str(port))
    assert str(refused) == f"port {port} is in use. Choose other ports: --ports 7001,7002,7003"
    assert refused.returncode == 1


def test_a_master_that_ends_is_reported(
    five_masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalMaster, "alive", property(lambda master: master.name != "master-2"))
    with pytest.raises(CommandError, match=f"port {five_masters[1].port} has ended"):
        redlock_masters.Command()._watch(five_masters)


def test_a_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDLOCK_SERVER", "no-such-server")
    refused = error("--ports", str(free_port()))
    assert str(refused) == "REDLOCK_SERVER=no-such-server: no such program"
    assert refused.returncode == 1


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ("x", "must be port numbers such as 7001,7002,7003, got 'x'"),
        ("7001,,7002", "must be port numbers"),
        ("7001,7001,7001", "names a port twice"),
        ("65536", "must be port numbers"),
        ("0", "must be port numbers"),
    ],
)
def test_wrong_arguments(ports: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        execute_from_command_line(["manage.py", "redlock_masters", "--ports", ports])
    assert message in capsys.readouterr().err


def put(settings: Settings, *masters: str) -> None:
    settings.REDLOCK = {"default": {"MASTERS": list(masters)}}


@pytest.mark.live
@pytest.mark.parametrize(("many", "first"), [(1, "1 master runs ("), (3, "3 masters run (")])
def test_the_masters_that_the_settings_name_are_started(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, many: int, first: str
) -> None:
    ports = [free_port() for _ in range(many)]
    put(settings, *(f"redis://localhost:{port}/0" for port in ports))
    started: list[int] = []

    def watch(command: Any, masters: list[LocalMaster]) -> None:
        started.extend(master.port for master in masters if master.alive)

    monkeypatch.setattr(redlock_masters.Command, "_watch", watch)
    out = StringIO()
    call_command("redlock_masters", stdout=out)
    assert started == ports
    assert "REDLOCK = " not in out.getvalue()
    assert out.getvalue().startswith(first)


@pytest.mark.parametrize(
    "url",
    [
        "redis://10.0.0.1:6379/0",
        "rediss://127.0.0.1:6379/0",
        "redis://:s3cret@127.0.0.1:6379/0",
        "unix:///run/redis.sock",
    ],
)
def test_a_master_that_cannot_be_started_here_is_named(settings: Settings, url: str) -> None:
    put(settings, url)
    refused = error()
    assert "REDLOCK['default']: MASTERS names" in str(refused)
    assert "Pass --ports" in str(refused)
    assert "s3cret" not in str(refused)
    assert refused.returncode == 2


def test_settings_that_are_wrong_are_refused(settings: Settings) -> None:
    put(settings, "redis:/x")
    assert error().returncode == 2
