"""A store without masters: no page, check or message calls its servers masters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from redlock_django import lock
from redlock_django.checks.masters import check_masters
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests.contract.stores import ZOOKEEPER
from tests.losses import ends_lost
from tests.operate.commands import run
from tests.operate.conftest import LIST
from tests.operate.sites import Site
from tests.ports import free_port

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings


@pytest.fixture(params=["database", "zookeeper"])
def silent_store(request: pytest.FixtureRequest, settings: Settings) -> Iterator[str]:
    """A store of which nothing answers; return its kind."""
    if request.param == "database":
        request.getfixturevalue("database_down")
    else:
        section = {"BACKEND": ZOOKEEPER, "HOSTS": [f"127.0.0.1:{free_port()}" for _ in range(3)]}
        settings.REDLOCK = {"default": {**section, "ZOOKEEPER_TIMEOUT": 0.1}}
    yield request.param
    locks.close()


def text_of(page: str) -> str:
    """Return what a reader sees of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.S))


@pytest.mark.slow
def test_a_store_that_does_not_answer(
    silent_store: str, viewer: Client, caplog: pytest.LogCaptureFixture
) -> None:
    shown = [text_of(viewer.get(LIST).content.decode())]
    shown += [f"{one.msg} {one.hint}" for one in check_masters(databases=["default"])]
    for command in (
        ["redlock_status"],
        ["list_locks"],
        ["release_lock", "order:1", "--noinput", "--holder", "0" * 8],
    ):
        ran = run(*command)
        assert ran.status == 3
        shown.append(ran.out + ran.said)
    with pytest.raises(StoreUnavailable) as unavailable:
        lock("order:1").acquire()
    shown += [str(unavailable.value), *caplog.messages]
    assert [text for text in shown if re.search("masters?\\b", text, re.I)] == []
    assert "No server answered" in shown[0]
    assert any(
        f"{'0 of 3 servers are' if silent_store == 'zookeeper' else 'not'} counted" in text
        for text in shown
    )


@pytest.mark.parametrize("site", ["database"], indirect=True)
def test_a_store_that_answers(site: Site, viewer: Client) -> None:
    site.put("order:1")
    page = viewer.get(LIST)
    assert "order:1" in page.content.decode()
    (server,) = run("redlock_status", "--format=json").json["masters"]
    absent_facts = ("uptime", "maxmemory_policy", "maxmemory", "appendonly")
    assert [server[fact] for fact in absent_facts] == [None] * 4
    assert not re.search("masters?\\b", text_of(page.content.decode()), re.I)


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
