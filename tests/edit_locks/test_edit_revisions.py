"""django-reversion on each database: all rows of a revision are compared before they are saved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
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
from tests.edit_locks.models import MODELS, Article, Tag
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
        reversion.register(Tag)
        yield site._registry[Article]
        with connections[ALIAS].schema_editor() as editor:
            for table in reversed(tables):
                editor.delete_model(table)
        ContentType.objects.clear_cache()
    reversion.unregister(Article)
    reversion.unregister(Tag)


def sent(data: Any = None) -> Any:
    factory = RequestFactory()
    made: Any = factory.post("/", data) if data else factory.get("/")
    made.user, made.session = User.objects.get(), {}
    made._dont_enforce_csrf_checks = True
    made._messages = FallbackStorage(made)
    return made


def revised(*rows: Any) -> Any:
    """Save rows in one revision, then with "new" names; return the version of the first."""
    import reversion
    from reversion.models import Version

    with reversion.create_revision():
        for row in rows:
            row.save()
    for row in rows:
        type(row).objects.filter(pk=row.pk).update(**{field_of(row): "new"})
    return Version.objects.get_for_object(rows[0]).get()


def field_of(row: Any) -> str:
    return "name" if isinstance(row, Tag) else "title"


def current(row: Any) -> Any:
    return type(row).objects.filter(pk=row.pk).values_list(field_of(row), flat=True).first()


def change(row: Any) -> None:
    type(row).objects.filter(pk=row.pk).update(**{field_of(row): "Bob's"})


def delete(row: Any) -> None:
    type(row).objects.filter(pk=row.pk).delete()


def add_tag(row: Any) -> None:
    row.tags.add(Tag.objects.create(name="Bob's"))


CHANGES: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
    "changed": (Article, change),
    "deleted": (Article, delete),
    "of another model": (Tag, change),
    "of another model, deleted": (Tag, delete),
    "a row of a many-to-many field": (Article, add_tag),
}


def test_another_row_of_a_revision_is_compared_before_it_is_restored(model_admin: Any) -> None:
    User.objects.create_superuser("anna")

    def view(version: Any, request: Any, *, is_recovered: bool) -> Any:
        if is_recovered:
            return model_admin.recover_view(request, str(version.pk))
        return model_admin.revision_view(request, str(version.object_id), str(version.pk))

    for is_recovered, what in product((False, True), CHANGES):
        model, others = CHANGES[what]
        first, second = Article(title="First"), model(**{field_of(model()): "Second"})
        version = revised(first, second)
        if is_recovered:
            Article.objects.filter(pk=first.pk).delete()
        before = current(first)
        page = view(version, sent(), is_recovered=is_recovered).content.decode()
        name = "Tag: new" if model is Tag else "Article: new"
        assert f"<li>{name}</li>" in page, what
        form = form_of(page, "article_form")
        others(second)
        stored = current(second)
        request = sent(form)
        answer = view(version, request, is_recovered=is_recovered)
        assert (answer.status_code, current(first), current(second)) == (302, before, stored), what
        told = "; ".join(map(str, request._messages))
        assert f"{model.__name__}: {stored or 'Second'}" in told, what
        form = form_of(
            view(version, sent(), is_recovered=is_recovered).content.decode(), "article_form"
        )
        assert view(version, sent(form), is_recovered=is_recovered).status_code == 302
        assert (current(first), current(second)) == ("First", "Second"), what


def at_once(model_admin: Any, hers: Callable[[], Any], his: Callable[[], Any]) -> dict[str, Any]:
    """Return the results of two saves; the second one begins while the first one saves its row.

    The row that the first one saves has the title "hers".
    """
    inside, goes_on = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def run(name: str, save: Callable[[], Any]) -> None:
        try:
            found[name] = save()
        except DatabaseError as error:
            found[name] = error
        finally:
            connections[ALIAS].close()

    def slow(request: Any, obj: Any, form: Any, change: bool) -> None:
        if obj.title == "hers":
            inside.set()
            assert goes_on.wait(WAIT)
        obj.save()

    model_admin.save_model = slow
    first = threading.Thread(target=run, args=("hers", hers))
    second = threading.Thread(target=run, args=("his", his))
    first.start()
    assert inside.wait(WAIT), found
    second.start()
    second.join(0.3)  # in which he waits for her
    assert second.is_alive(), found
    goes_on.set()
    for thread in (first, second):
        thread.join(WAIT)
    return found


def test_of_two_reverts_at_once_one_is_refused(model_admin: Any) -> None:
    """Each of them would make a deleted row again, which belongs to both revisions."""
    User.objects.create_superuser("anna")
    shared = Article(title="Shared")
    rows = [Article(title="hers"), Article(title="his")]
    versions = [revised(row, shared) for row in rows]
    Article.objects.filter(pk=shared.pk).delete()

    def revert(version: Any, data: Any) -> str:
        request = sent(data)
        model_admin.revision_view(request, version.object_id, str(version.pk))
        return "; ".join(map(str, request._messages))

    saves = []
    for version in versions:
        page = model_admin.revision_view(sent(), version.object_id, str(version.pk))
        data = form_of(page.content.decode(), "article_form")
        saves.append(partial(revert, version, data))
    found = at_once(model_admin, *saves)
    assert "has changed since the page was opened: Article: Shared" in found["his"], found
    assert [current(row) for row in (*rows, shared)] == ["hers", "new", "Shared"]


def test_of_two_recoveries_at_once_one_is_refused(model_admin: Any) -> None:
    import reversion
    from reversion.models import Version

    User.objects.create_superuser("anna")
    with reversion.create_revision():
        row = Article.objects.create(title="Old")
    with reversion.create_revision():
        row.title = "Newer"
        row.save()
    newest, oldest = Version.objects.get_for_object(row)
    row.delete()

    def recover(version: Any, data: Any) -> tuple[int, bool]:
        request = sent(data)
        answer = model_admin.recover_view(request, str(version.pk))
        told = "; ".join(map(str, request._messages))
        return answer.status_code, "exists again" in told

    saves = []
    for version, title in ((newest, "hers"), (oldest, "his")):
        page = model_admin.recover_view(sent(), str(version.pk))
        data = {**form_of(page.content.decode(), "article_form"), "title": title}
        saves.append(partial(recover, version, data))
    found = at_once(model_admin, *saves)
    assert found == {"hers": (302, False), "his": (302, True)}
    assert Article.objects.get().title == "hers"
