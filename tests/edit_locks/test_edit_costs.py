"""The cost of an open page on the masters: as much as one lock, and no connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.test import Client

from redlock_django import EditLockMixin, lock, locks
from redlock_django.testing.masters import LocalMaster
from tests.edit_locks.conftest import opened, report
from tests.looking import looking_at, scripts_run
from tests.timeouts import generous_timeouts
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.live]
Base: Any = admin.ModelAdmin


def cost(masters: list[LocalMaster], work: Callable[[], Any]) -> dict[str, int]:
    """Return how many connections and scripts `work` costs on all masters together."""

    def counted() -> dict[str, int]:
        found = {"connections": 0, "scripts": sum(scripts_run(masters))}
        for master in masters:
            client = looking_at(master)
            found["connections"] += client.info("stats")["total_connections_received"]
        return found

    before = counted()
    work()
    backend: Any = locks["default"].backend
    until(lambda: not backend.thread_driver().links.owing(), "all masters have answered")
    return {name: many - before[name] for name, many in counted().items()}


def test_a_page_and_its_renewal_cost_what_one_lock_costs(
    register: Callable[..., None],
    settings: Settings,
    masters: list[LocalMaster],
    anna: Client,
    change: str,
) -> None:
    register(type("ArticleAdmin", (EditLockMixin, Base), {}))
    urls = [master.url for master in masters]
    settings.REDLOCK = {"default": {"MASTERS": urls, "RESTART_DELAY": 0, **generous_timeouts()}}

    def one_lock() -> None:
        with lock("measured"):
            pass

    while cost(masters, one_lock) != {"connections": 0, "scripts": 10}:
        pass  # until all masters are connected and have the scripts
    # A majority decides about the lock that is handed on, so up to two of five are asked once more.
    pages: list[Any] = []
    for work in (
        lambda: pages.append(opened(anna, change)),
        lambda: report(pages[0], "renew"),
        lambda: report(pages[0], "leave"),
    ):
        found = cost(masters, work)
        assert found["connections"] == 0
        assert found["scripts"] <= 12
