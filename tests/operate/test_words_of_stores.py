"""A store without masters: no page, check or message calls its servers masters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from redlock_django import lock
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests.app.checking import found
from tests.contract.stores import ZOOKEEPER
from tests.losses import ends_lost
from tests.operate.commands import run
from tests.operate.conftest import LIST, release, text_of
from tests.operate.sites import Site
from tests.ports import free_port

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings


@pytest.fixture(params=["database", pytest.param("zookeeper", marks=pytest.mark.slow)])
def silent_store(request: pytest.FixtureRequest, settings: Settings) -> Iterator[str]:
    """A store of which nothing answers; yield why."""
    if request.param == "database":
        request.getfixturevalue("database_down")
        why = "unable to open database file"
    else:
        section = {"BACKEND": ZOOKEEPER, "HOSTS": [f"127.0.0.1:{free_port()}" for _ in range(3)]}
        settings.REDLOCK = {"default": {**section, "ZOOKEEPER_TIMEOUT": 0.1}}
        why = ""  # it differs from question to question
    yield why
    locks.close()


def test_a_store_that_does_not_answer(
    silent_store: str, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    page = text_of(operator.get(LIST))
    assert "No quorum: locks are refused now." in page
    assert "No server answered" in page
    assert silent_store == "" or page.count(silent_store) == 1
    checked = found(deploy=True, tag="redlock_masters", databases=["default"])
    assert set(checked) == {"W026", "E028"}
    status = run("redlock_status", "--format=json")
    servers = status.json["masters"]
    assert [one["faults"][0]["code"] for one in servers] == ["unreachable"] * len(servers)
    listed = run("list_locks", "--format=json")
    assert re.search(r"Only 0 of \d servers answered", listed.said)
    assert listed.json["quorum"] is False
    freed = run("release_lock", "order:1", "--noinput", "--holder", "0" * 8)
    assert "order:1 may still be held" in freed.said
    (message,) = release(operator, "0123abcd:order:1")
    assert "Too few servers answered: order:1" in message
    table = run("redlock_status")
    counted = "0 of 3 servers are" if len(servers) == 3 else "the only server is not"
    assert f"default: {counted} counted" in table.said
    shown = [page, checked["W026"], status.said, listed.said]
    shown += [ran.out + ran.said for ran in (freed, table)]
    assert [text for text in shown if silent_store not in " ".join(text.split())] == []
    assert [ran.status for ran in (status, listed, freed, table)] == [3] * 4
    with pytest.raises(StoreUnavailable) as unavailable:
        lock("order:1").acquire()
    shown += [checked["E028"], message, str(unavailable.value), *caplog.messages]
    assert [text for text in shown if re.search("masters?\\b", text, re.I)] == []


@pytest.mark.parametrize("site", ["database"], indirect=True)
def test_a_store_that_answers(site: Site, viewer: Client) -> None:
    site.put("order:1")
    page = viewer.get(LIST)
    assert "order:1" in page.content.decode()
    (server,) = run("redlock_status", "--format=json").json["masters"]
    absent_facts = ("uptime", "maxmemory_policy", "maxmemory", "appendonly")
    assert [server[fact] for fact in absent_facts] == [None] * 4
    assert not re.search("masters?\\b", text_of(page), re.I)


@pytest.mark.django_db
def test_why_a_lock_was_lost(database_access: None, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}
    with ends_lost(), lock("order:1") as held:
        run("release_lock", "order:1", "--noinput", "--holder", held.fingerprint)
        with pytest.raises(Exception, match="the store lost it"):
            held.verify()


@pytest.mark.parametrize("site", ["database"], indirect=True)
def test_an_outage_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "redlock_django")
    notice = locks["default"].backend.notice
    for _ in range(2):
        notice("default", False, "disk I/O error")
    notice("default", True, "")
    assert [message for message in caplog.messages if " default " in message] == [
        "redlock server default failed: disk I/O error",
        "redlock server default is back",
    ]
