"""django-reversion: of two editors who recover one deleted row at once, one is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.messages.storage.fallback import FallbackStorage
from django.db import DatabaseError, connections
from django.test import RequestFactory
from django.urls import path

from redlock_django import EditLockMixin
from tests.edit_locks.models import MODELS, Article
from tests.edit_locks.pages import form_of
from tests.edit_locks.test_edit_databases import WAIT, entry_of
from tests.live.transactions.conftest import database_alias

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.live
ALIAS = "edited"


class Everything:
    """Leads to all rows in the second database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return ALIAS

    db_for_write = db_for_read

    def allow_relation(self, *rows: Any, **hints: Any) -> bool:
        return True


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def model_admin(
    request: pytest.FixtureRequest, settings: Settings, urls: list[Any], django_db_blocker: Any
) -> Iterator[Any]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "reversion"]
    import reversion
    from reversion.admin import VersionAdmin
    from reversion.models import Revision, Version

    settings.DATABASE_ROUTERS = [Everything()]
    made: Any = type("ArticleAdmin", (EditLockMixin, VersionAdmin), {"fields": ("title",)})
    site = admin.AdminSite()
    site.register(Article, made)
    urls[:] = [path("admin/", site.urls)]
    tables = [ContentType, Permission, Group, User, Revision, Version, *MODELS]
    tables.append(admin.models.LogEntry)
    entry = entry_of(request.param, request)
    with django_db_blocker.unblock(), database_alias(ALIAS, entry):
        ContentType.objects.clear_cache()
        with connections[ALIAS].schema_editor() as editor:
            for table in tables:
                editor.create_model(table)
        yield site._registry[Article]
        with connections[ALIAS].schema_editor() as editor:
            for table in reversed(tables):
                editor.delete_model(table)
        ContentType.objects.clear_cache()
    reversion.unregister(Article)


def test_of_two_recoveries_at_once_one_is_refused(model_admin: Any) -> None:
    import reversion
    from reversion.models import Version

    user = User.objects.create_superuser("anna")
    with reversion.create_revision():
        row = Article.objects.create(title="Old")
    with reversion.create_revision():
        row.title = "Newer"
        row.save()
    newest, oldest = Version.objects.get_for_object(row)
    row.delete()
    inside, goes_on = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def request(data: Any = None) -> Any:
        factory = RequestFactory()
        made: Any = factory.post("/", data) if data else factory.get("/")
        made.user, made.session, made._dont_enforce_csrf_checks = user, {}, True
        made._messages = FallbackStorage(made)
        return made

    def recover(version: Any, data: Any) -> None:
        try:
            sent = request(data)
            answer = model_admin.recover_view(sent, str(version.pk))
            told = "; ".join(map(str, sent._messages))
            found[data["title"]] = (answer.status_code, "exists again" in told)
        except DatabaseError as error:
            found[data["title"]] = error
        finally:
            connections[ALIAS].close()

    def slow(self: Any, obj: Any, *args: Any) -> None:
        if obj.title == "hers":
            inside.set()
            assert goes_on.wait(WAIT)
        obj.save()

    model_admin.save_model = lambda request, obj, form, change: slow(model_admin, obj)
    threads = []
    for version, title in ((newest, "hers"), (oldest, "his")):
        page = model_admin.recover_view(request(), str(version.pk))
        data = {**form_of(page.content.decode(), "article_form"), "title": title}
        threads.append(threading.Thread(target=recover, args=(version, data)))
    threads[0].start()
    assert inside.wait(WAIT), found
    threads[1].start()
    threads[1].join(0.3)  # in which he waits for her
    assert threads[1].is_alive(), found
    goes_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert found == {"hers": (302, False), "his": (302, True)}
    assert Article.objects.get().title == "hers"
