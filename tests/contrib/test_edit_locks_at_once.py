"""Two users save one object at the same moment, on each database: one save is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client
from django.urls import path

from redlock_django.contrib.edit_locks import EditLockMixin
from testproject.shop.models import Order
from tests.aliases import database_alias, new_database
from tests.contrib.edited.pages import OpenPage

if TYPE_CHECKING:
    from pytest_django import Settings

    ModelAdmin = admin.ModelAdmin[Order]
else:
    ModelAdmin = admin.ModelAdmin

pytestmark = [pytest.mark.live, pytest.mark.slow]

WAIT = 60


class Router:
    """Leads to the second database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "edited"

    db_for_write = db_for_read


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def _database(
    request: pytest.FixtureRequest, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            name = str(tmp_path_factory.mktemp("edited") / "db")
            entry: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
            entry |= {"OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": WAIT}}
        else:  # a database of its own: other tests create tables in that of the server
            server = request.getfixturevalue(request.param)
            entry = stack.enter_context(new_database(server, "edited"))
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(database_alias("edited", entry))
        call_command("migrate", database="edited", verbosity=0)
        ContentType.objects.clear_cache()
        yield
        ContentType.objects.clear_cache()


class RevisedAdmin(ModelAdmin):
    """A ModelAdmin with a transaction around its views, as that of django-reversion has one."""

    def change_view(self, *args: Any, **kwargs: Any) -> Any:
        with transaction.atomic(using="edited"):
            return super().change_view(*args, **kwargs)


class SlowAdmin(EditLockMixin, RevisedAdmin):
    """A ModelAdmin that can wait between the comparison and the UPDATE."""

    saving: threading.Event | None = None
    goes_on: threading.Event | None = None

    def save_model(self, request: Any, obj: Any, form: Any, change: Any) -> None:
        if self.saving and self.goes_on and request.user.username == "anna":
            self.saving.set()
            assert self.goes_on.wait(WAIT)
        super().save_model(request, obj, form, change)


@pytest.fixture(params=[False, True], ids=["autocommit", "ATOMIC_REQUESTS"])
def model_admin(
    request: pytest.FixtureRequest, _database: None, settings: Settings, memory: None,
    database_access: None, monkeypatch: pytest.MonkeyPatch, urls: Callable[..., None],
) -> Iterator[SlowAdmin]:  # fmt: skip
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", False)
    monkeypatch.setitem(connections["edited"].settings_dict, "ATOMIC_REQUESTS", request.param)
    settings.DATABASE_ROUTERS = [Router()]
    site = admin.AdminSite()
    site.register(Order, SlowAdmin)
    urls(path("admin/", site.urls))
    found: Any = site.get_model_admin(Order)
    yield found
    LogEntry.objects.all().delete()
    Order.objects.all().delete()


def user(name: str) -> Client:
    found, _ = User.objects.get_or_create(username=name, is_superuser=True, is_staff=True)
    client = Client()
    client.force_login(found)
    return client


def pages() -> tuple[Order, OpenPage, OpenPage]:
    row = Order.objects.create(number="A-1", total=1)
    hers, his = (
        OpenPage(user(name), f"/admin/shop/order/{row.pk}/change/") for name in ("anna", "bob")
    )
    return row, hers, his


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_of_two_saves_at_the_same_moment_one_is_refused(model_admin: SlowAdmin) -> None:
    row, hers, his = pages()
    for number in range(1, 6):
        start = threading.Barrier(2)

        def send(page: OpenPage, total: int, start: threading.Barrier = start) -> None:
            start.wait(WAIT)
            page.send(total=total)

        threads = [
            in_thread(lambda page=page, total=total: send(page, total))  # type: ignore[misc]
            for page, total in ((hers, 10 * number), (his, 10 * number + 1))
        ]
        for thread in threads:
            thread.join(WAIT)
        statuses = [page.answer.status_code for page in (hers, his)]
        assert sorted(statuses) == [200, 302]
        saved, refused = (hers, his) if statuses == [302, 200] else (his, hers)
        row.refresh_from_db()
        assert row.total == 10 * number + (saved is his)
        assert refused.errors[0].startswith("Not saved: it was changed")
        hers, his = (OpenPage(page.client, page.path) for page in (hers, his))


@pytest.mark.parametrize("deletes", [False, True], ids=["save", "deletion"])
def test_a_save_that_has_not_been_committed_is_waited_for(
    model_admin: SlowAdmin, deletes: bool
) -> None:
    """A save would insert the row again that a deletion meanwhile has deleted."""
    row, hers, his = pages()
    model_admin.saving, model_admin.goes_on = threading.Event(), threading.Event()
    first = in_thread(lambda: hers.send(total=2))
    assert model_admin.saving.wait(WAIT)
    delete = f"/admin/shop/order/{row.pk}/delete/"
    second = in_thread(
        lambda: his.client.post(delete, {"post": "yes"}) if deletes else his.send(total=3)
    )
    second.join(0.3)
    assert second.is_alive()
    model_admin.goes_on.set()
    for thread in (first, second):
        thread.join(WAIT)
    assert hers.answer.status_code == 302
    if deletes:
        assert not Order.objects.exists()
        return
    assert his.answer.status_code == 200
    row.refresh_from_db()
    assert row.total == 2
