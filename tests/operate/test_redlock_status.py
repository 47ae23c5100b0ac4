"""`manage.py redlock_status` on real masters: the faults of each, and the quorum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock
from tests.app.checking import found
from tests.operate.commands import THREE_IN_MEMORY, memory, run
from tests.operate.sites import DATABASE
from tests.timeouts import generous_timeouts
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster


@pytest.fixture
def site(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """Five real masters that are all trusted."""
    settings.REDLOCK = {"default": {"MASTERS": [m.url for m in masters], **generous_timeouts()}}
    assert run("redlock_init").status == 0
    return masters


def codes(document: Any) -> list[list[str]]:
    return [[fault["code"] for fault in master["faults"]] for master in document["masters"]]


@pytest.mark.live
def test_a_healthy_deployment_has_status_0(site: list[LocalMaster]) -> None:
    ran = run("redlock_status", "--format=json")
    assert (ran.status, ran.said) == (0, "")
    document = ran.json
    assert (document["counted"], document["needed"], document["quorum"]) == (5, 3, True)
    assert codes(document) == [[]] * 5
    first = document["masters"][0]
    assert first["name"] == f"127.0.0.1:{site[0].port}"
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
def test_one_fault_among_a_quorum(site: list[LocalMaster]) -> None:
    site[0].kill()
    ran = run("redlock_status")
    assert ran.status == 1
    assert f"127.0.0.1:{site[0].port} refused the connection" in ran.said
    row = ran.out.splitlines()[1].split()
    assert (row[1], row[-1]) == ("no", "unreachable")


@pytest.mark.live
def test_a_master_whose_database_a_cache_empties(
    site: list[LocalMaster], settings: Settings
) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://:canary@localhost:{site[1].port}/0",
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
    settings: Settings, monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    """The command says which of them it was."""
    settings.REDLOCK = {"default": THREE_IN_MEMORY}
    memory().down[0] = "did not answer within 0.25 s"
    command = "redlock_django.management.commands.redlock_status"
    monkeypatch.setattr(f"{command}.load_average", lambda: (load, 2))
    ran = run("redlock_status", "--format=json")
    assert ran.json["host"]["busy"] is busy
    assert ("so masters may seem slow that are not" in ran.said) is busy
    assert ("the masters or the network are slow" in ran.said) is not busy
    memory().down[0] = "refused the connection"
    assert "This host" not in run("redlock_status").said


def test_the_memory_backend(settings: Settings) -> None:
    settings.REDLOCK = {"default": THREE_IN_MEMORY}
    assert run("redlock_status").status == 0
    memory().down[0] = True
    assert run("redlock_status").status == 1
    memory().down[1] = True
    assert run("redlock_status").status == 3
    assert run("redlock_status", "--using", "nope").status == 2


def test_a_master_behind_a_proxy_that_hides_its_run_id(settings: Settings) -> None:
    settings.REDLOCK = {"default": THREE_IN_MEMORY}
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
    settings.REDLOCK = {
        "default": {"MASTERS": [masters[0].url], "PROFILE": "failover", **generous_timeouts()}
    }
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
    said = found(deploy=True, tag="redlock_masters", databases=["default"])
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
    said = found(deploy=True, tag="redlock_masters", databases=["default"])
    assert set(said) == {"W026", "E028"}
    assert "Wait" in said["W026"]
    assert "redlock_init" not in said["W026"]
