"""System checks that connect to the masters: only on request, with redlock_status's faults."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.locking.services import locks
from redlock_django.wire.servers.survey import Survey
from tests.app.checking import found
from tests.operate.commands import run
from tests.operate.misconfigured import misconfigure
from tests.operate.sites import DATABASE
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


@pytest.fixture
def site(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    settings.REDLOCK = {"default": {"MASTERS": [m.url for m in masters], **generous_timeouts(1)}}
    assert run("redlock_init").status == 0
    return masters


def asked() -> dict[str, str]:
    """Return the messages of the checks that connect to the masters."""
    return found(deploy=True, tag="redlock_masters", databases=["default"])


@pytest.mark.django_db  # since Django 6.1 a plain check queries the database's features
def test_masters_are_checked_on_request_only(
    site: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a master was connected to")

    monkeypatch.setattr(Survey, "__init__", refuse)
    call_command("check", "--deploy", "--tag", "redlock", stderr=StringIO())
    call_command("check", "--deploy", stderr=StringIO())
    call_command("check", "--tag", "redlock", "--database", "default", stderr=StringIO())
    with pytest.raises(CommandError, match='no system check with the "redlock_masters" tag'):
        call_command("check", "--tag", "redlock_masters", "--database", "default")
    with pytest.raises(AssertionError, match="was connected to"):
        call_command("check", "--deploy", "--tag", "redlock_masters", "--database", "default")


def test_valid_masters_have_no_messages(site: list[LocalMaster]) -> None:
    assert asked() == {}


def test_faults_become_messages(site: list[LocalMaster], settings: Settings) -> None:
    misconfigure(*site[:3])
    site[3].kill()
    site[4].restart()
    said = asked()
    assert set(said) == {"E025", "W026", "W027", "E028"}
    assert f"127.0.0.1:{site[3].port}: refused the connection" in said["W026"]
    assert f"127.0.0.1:{site[4].port}: new or emptied" in said["W026"]
    assert "1 of 5 masters are counted" in said["E028"]
    assert re.search(r"may evict locks \(.*\) Set maxmemory-policy to noeviction", said["E025"])
    assert "is a replica of" in said["E025"]
    assert "would evict locks if it had a maxmemory" in said["W027"]
    assert "may evict" not in said["W027"]
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    assert "1 of 5 masters are counted, 3 are needed" in ran.said
    shown = ran.json["masters"]
    found = [[fault["code"] for fault in one["faults"]] for one in shown]
    assert "replica" in found.pop(2)
    assert found == [["policy"], ["eviction"], ["unreachable"], ["untrusted"]]
    assert [one["counted"] for one in shown] == [True, *[False] * 4]
    assert shown[3]["latency_ms"] is None
    with pytest.raises(CommandError, match=r"redlock_django\.E025"):
        call_command("check", "--deploy", "--tag=redlock_masters", "--database=default")
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "TOLERATE": ["eviction"]}}
    assert run("redlock_status", "--format=json").json["masters"][1]["counted"] is True
    said = asked()
    assert "may evict locks" in said["W027"]
    assert "may evict locks" not in said["E025"]


def test_twins_other_numbers_and_no_delay(site: list[LocalMaster], settings: Settings) -> None:
    urls = [site[0].url, site[0].unix_url, site[1].url]
    settings.REDLOCK = {"default": {"MASTERS": urls, "RESTART_DELAY": 0, **generous_timeouts(1)}}
    said = asked()
    assert {"E025", "W027", "E028"} == set(said)
    assert "is the same server as" in said["E025"]
    assert "belongs to another deployment" in said["E025"]
    assert "a restart loses its locks" in said["W027"]
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    found = [[fault["code"] for fault in one["faults"]] for one in ran.json["masters"]]
    assert found == [["twin", "deployment"]] * 2 + [["deployment"]]
    assert "--reconfigure" in ran.said


def test_clock_skew_and_old_servers(
    site: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from redlock_django.wire.servers.info import faults

    health = Survey.health

    def seen(survey: Survey) -> Any:
        known = health(survey)
        old = {"redis_version": "4.0.9", "role": "master", "cluster_enabled": "1", "loading": "1"}
        known[1] = replace(known[1], offset=known[1].offset - 7)
        known[2] = replace(known[2], faults=tuple(faults(old)))
        return known

    monkeypatch.setattr(Survey, "health", seen)
    said = asked()
    assert set(said) == {"E025", "W026"}
    assert "its version 4.0.9 is too old" in said["E025"]
    assert "is a cluster node" in said["E025"]
    assert re.search(r"-([1-6]\.\d|7\.0) s off", said["E025"])  # minus the response times
    assert "is still loading its data" in said["W026"]


def test_a_database_is_asked_on_request_only(
    settings: Settings, database_access: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}

    def refuse(*_: Any) -> None:
        raise AssertionError("the database was asked")

    monkeypatch.setattr(DatabaseSettings, "connect", refuse)
    assert set(found(deploy=True)) == {"E018"}  # it is in memory
    assert found(databases=["default"]) == {}
    backend = locks["default"].backend
    monkeypatch.setattr(type(backend), "inspect", refuse)
    with pytest.raises(AssertionError, match="was asked"):
        asked()
