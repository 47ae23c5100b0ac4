"""`manage.py redlock_status` and the system checks of masters: the faults of each, the quorum."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from redlock_django import lock
from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.locking.services import locks
from redlock_django.wire.servers.info import faults
from redlock_django.wire.servers.survey import Survey
from tests.app.checking import found
from tests.operate.commands import memory, run
from tests.operate.misconfigured import misconfigure
from tests.operate.sites import DATABASE
from tests.timeouts import redlock_of
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster


def codes(document: Any) -> list[list[str]]:
    return [[fault["code"] for fault in master["faults"]] for master in document["masters"]]


@pytest.mark.live
def test_a_healthy_deployment_has_status_0(declared: list[LocalMaster]) -> None:
    ran = run("redlock_status", "--format=json")
    assert (ran.status, ran.said) == (0, "")
    document = ran.json
    assert (document["counted"], document["needed"], document["quorum"]) == (5, 3, True)
    assert codes(document) == [[]] * 5
    first = document["masters"][0]
    assert first["name"] == f"127.0.0.1:{declared[0].port}"
    assert first["up"] is first["counted"] is True
    assert 0 < first["latency_ms"] < 5000
    assert abs(first["clock_offset_ms"]) < 5000
    assert re.fullmatch(r"[\d.]+", first["version"])
    assert first["maxmemory_policy"] == "noeviction"
    assert first["appendonly"] is False
    assert first["held"] == 0
    assert first["trusted_in"] == 0
    assert first["forbidden"] == []
    assert document["caveat"] == ""
    table = run("redlock_status")
    assert table.status == 0
    assert len(table.out.splitlines()) == 6
    assert "5 of 5 masters are counted, 3 are needed" in table.said
    assert run("list_locks").status == 0  # redlock_status has left no keys.
    assert lock("order:1").acquire().release()


@pytest.mark.live
def test_one_fault_among_a_quorum(declared: list[LocalMaster]) -> None:
    declared[0].kill()
    ran = run("redlock_status")
    assert ran.status == 1
    assert f"127.0.0.1:{declared[0].port} refused the connection" in ran.said
    row = ran.out.splitlines()[1].split()
    assert (row[1], row[-1]) == ("no", "unreachable")


@pytest.mark.live
def test_a_master_whose_database_a_cache_empties(
    declared: list[LocalMaster], settings: Settings
) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://:canary@localhost:{declared[1].port}/0",
        }
    }
    ran = run("redlock_status", "--format=json")
    assert ran.status == 1
    assert codes(ran.json) == [[], ["cache"], [], [], []]
    assert "the cache 'default' empties it" in ran.said
    assert ran.json["masters"][1]["counted"] is True
    assert "canary" not in f"{ran}"


@pytest.mark.parametrize(("load", "busy"), [(0.5, False), (9.0, True)])
def test_a_silent_master_or_a_busy_host(
    in_memory: None, monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    """The command says which of them it was."""
    memory().down[0] = "did not answer within 0.25 s"
    command = "redlock_django.management.commands.redlock_status"
    monkeypatch.setattr(f"{command}.load_average", lambda: (load, 2))
    ran = run("redlock_status", "--format=json")
    assert ran.json["host"]["busy"] is busy
    assert ("so masters may seem slow that are not" in ran.said) is busy
    assert ("the masters or the network are slow" in ran.said) is not busy
    memory().down[0] = "refused the connection"
    assert "This host" not in run("redlock_status").said


def test_the_memory_backend(in_memory: None) -> None:
    assert run("redlock_status").status == 0
    memory().down[0] = True
    assert run("redlock_status").status == 1
    memory().down[1] = True
    assert run("redlock_status").status == 3
    assert run("redlock_status", "--using", "nope").status == 2


def test_a_master_behind_a_proxy_that_hides_its_run_id(in_memory: None) -> None:
    memory().masters[0].run_id = ""
    for master in run("redlock_status", "--format=json").json["masters"]:
        assert master["appendonly"] is False
        assert master["maxmemory_policy"] == "noeviction"
    heads, *rows = run("redlock_status").out.splitlines()
    aof = heads.split().index("AOF")
    assert [row.split()[aof + 2] for row in rows] == ["no"] * 3  # "0.0 ms" and "+0 ms" are two


def test_a_database(settings: Settings, database_access: None) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}
    with lock("order:1"):
        ran = run("redlock_status", "--format=json")
    assert (ran.status, ran.said) == (0, "")
    assert (ran.json["counted"], ran.json["needed"], ran.json["quorum"]) == (1, 1, True)
    (server,) = ran.json["masters"]
    assert (server["name"], server["server"], server["held"]) == ("default", "SQLite", 1)
    assert server["faults"] == []
    table = run("redlock_status")
    heads, row = table.out.splitlines()
    assert heads.split()[:2] == ["SERVER", "COUNTED"]
    assert row.split()[:2] == ["default", "yes"]
    assert table.said.strip() == "default: the only server is counted."


@pytest.mark.live
def test_one_server_with_a_replica_says_what_is_excluded(
    masters: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = redlock_of(masters[0].url, PROFILE="failover")
    assert run("redlock_init").status == 0
    ran = run("redlock_status", "--format=json")
    assert ran.status == 0
    assert ran.json["caveat"].startswith("One server whose replica may take over: a failover may")
    assert ran.json["caveat"] in ran.said
    with masters[0].client() as primary, masters[1].client() as replica:
        primary.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(masters[0].port))
        until(lambda: primary.info("replication")["connected_slaves"] == 1, "it has a replica")
    assert "set min-replicas-to-write to 1" in run("redlock_status").said
    said = asked()
    assert "would go on beside a promoted replica" in said["W027"]


def test_a_database_that_may_have_forgotten_locks(
    settings: Settings, database_access: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}
    monkeypatch.setattr("redlock_django.backends.database.inspection.ready_in", lambda *_: 42.0)
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    assert codes(ran.json) == [["untrusted"]]
    assert "trusted in 42 s" in ran.said
    said = asked()
    assert set(said) == {"W026", "E028"}
    assert "Wait" in said["W026"]
    assert "redlock_init" not in said["W026"]


# System checks that connect to the masters.


def asked() -> dict[str, str]:
    """Return the messages of the checks that connect to the masters."""
    return found(deploy=True, tag="redlock_masters", databases=["default"])


@pytest.mark.live
@pytest.mark.django_db  # since Django 6.1 a plain check queries the database's features
def test_masters_are_checked_on_request_only(
    declared: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.live
def test_valid_masters_have_no_messages(declared: list[LocalMaster]) -> None:
    assert asked() == {}


@pytest.mark.live
def test_faults_become_messages(declared: list[LocalMaster], settings: Settings) -> None:
    misconfigure(*declared[:3])
    declared[3].kill()
    declared[4].restart()
    said = asked()
    assert set(said) == {"E025", "W026", "W027", "E028"}
    assert f"127.0.0.1:{declared[3].port}: refused the connection" in said["W026"]
    assert f"127.0.0.1:{declared[4].port}: new or emptied" in said["W026"]
    assert "1 of 5 masters are counted" in said["E028"]
    assert re.search(r"may evict locks \(.*\) Set maxmemory-policy to noeviction", said["E025"])
    assert "is a replica of" in said["E025"]
    assert "would evict locks if it had a maxmemory" in said["W027"]
    assert "may evict" not in said["W027"]
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    assert "1 of 5 masters are counted, 3 are needed" in ran.said
    shown = ran.json["masters"]
    faults_of = codes(ran.json)
    assert "replica" in faults_of.pop(2)
    assert faults_of == [["policy"], ["eviction"], ["unreachable"], ["untrusted"]]
    assert [one["counted"] for one in shown] == [True, *[False] * 4]
    assert shown[3]["latency_ms"] is None
    with pytest.raises(CommandError, match=r"redlock_django\.E025"):
        call_command("check", "--deploy", "--tag=redlock_masters", "--database=default")
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "TOLERATE": ["eviction"]}}
    assert run("redlock_status", "--format=json").json["masters"][1]["counted"] is True
    said = asked()
    assert "may evict locks" in said["W027"]
    assert "may evict locks" not in said["E025"]


@pytest.mark.live
def test_twins_other_numbers_and_no_delay(declared: list[LocalMaster], settings: Settings) -> None:
    urls = [declared[0].url, declared[0].unix_url, declared[1].url]
    settings.REDLOCK = redlock_of(*urls, RESTART_DELAY=0)
    said = asked()
    assert {"E025", "W027", "E028"} == set(said)
    assert "is the same server as" in said["E025"]
    assert "belongs to another deployment" in said["E025"]
    assert "a restart loses its locks" in said["W027"]
    ran = run("redlock_status", "--format=json")
    assert ran.status == 3
    assert codes(ran.json) == [["twin", "deployment"]] * 2 + [["deployment"]]
    assert "--reconfigure" in ran.said


@pytest.mark.live
def test_clock_skew_and_old_servers(
    declared: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
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
