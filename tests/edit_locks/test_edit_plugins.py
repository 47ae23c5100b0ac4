"""Plug-ins of the admin: to save an old version of a row is a save, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.db import connection, models
from django.test import Client

from redlock_django import EditLockMixin
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import Article, Paragraph, Row

if TYPE_CHECKING:
    from pytest_django import Settings

LIST = "/admin/edited/article/"

# Tables cannot be made inside a transaction of SQLite.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reverting(settings: Settings, register: Callable[..., None]) -> Iterator[None]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "reversion"]
    import reversion
    from reversion.admin import VersionAdmin
    from reversion.models import Revision, Version

    with connection.schema_editor() as editor:
        editor.create_model(Revision)
        editor.create_model(Version)
    paragraphs: Any = type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, "extra": 0})
    about = {
        "inlines": [paragraphs], "list_display": ("id", "title"), "list_editable": ("title",),
        "edit_ignore": ("views",),
    }  # fmt: skip
    register(type("ArticleAdmin", (EditLockMixin, VersionAdmin), about))
    yield
    reversion.unregister(Article)
    reversion.unregister(Paragraph)
    with connection.schema_editor() as editor:
        editor.delete_model(Version)
        editor.delete_model(Revision)


@pytest.mark.usefixtures("reverting")
def test_a_revert_of_a_row_that_has_changed_is_refused(
    anna: Client, article: Article, change: str
) -> None:
    from reversion.models import Version

    article.paragraphs.create(text="1")
    assert opened(anna, change).send(title="First").status_code == 302
    assert opened(anna, change).send(title="Second").status_code == 302
    first = Version.objects.get_for_object(article).last()
    path = f"/admin/edited/article/{article.pk}/history/{first.pk}/"
    reverts = opened(anna, path)
    assert reverts.fields["title"] == ["First"]
    Article.objects.update(title="Bob's")
    assert reverts.send().status_code == 302
    again = opened(anna, path)
    assert "has changed since the page was opened: Article: Bob&#x27;s" in again.text
    article.refresh_from_db()
    assert article.title == "Bob's"
    article.paragraphs.update(text="Bob's")
    assert again.send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("Bob's", "Bob's")
    assert opened(anna, path).send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("First", "1")


@pytest.mark.usefixtures("reverting")
def test_a_revert_names_the_rows_that_it_restores_and_deletes(
    anna: Client, article: Article
) -> None:
    from reversion.models import Version

    second = Article.objects.create(title="Second")
    rows = list_of(article, second)
    assert anna.post(LIST, rows).status_code == 302
    first = Version.objects.get_for_object(article).get()
    article.paragraphs.create(text="Added")
    path = f"/admin/edited/article/{article.pk}/history/{first.pk}/"
    page = opened(anna, path)
    assert re.findall("<li>(Article.*|Paragraph.*)</li>", page.text) == [
        "Article: 1 saved",
        "Paragraph: Added",
    ]
    article.paragraphs.update(text="Bob's")
    assert page.send().status_code == 302
    again = opened(anna, path)
    assert "since the page was opened: Paragraph: Bob&#x27;s. Look" in again.text
    Article.objects.filter(pk=second.pk).update(title="Bob's")
    assert again.send().status_code == 302
    assert "opened: Article: Bob&#x27;s" in told(anna, path)
    assert Article.objects.get(pk=second.pk).title == "Bob's"
    Article.objects.update(views=7)  # edit_ignore
    alone = opened(anna, path)
    Article.objects.update(views=8)
    assert alone.send().status_code == 302
    assert (Article.objects.get(pk=second.pk).title, Paragraph.objects.count()) == ("1 saved", 0)


@pytest.mark.usefixtures("reverting")
def test_a_row_that_was_recovered_is_not_recovered_again(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    from reversion.models import Version

    assert opened(anna, change).send(title="First").status_code == 302
    assert opened(anna, change).send(title="Second").status_code == 302
    pk = article.pk
    newest, oldest = Version.objects.get_for_object(article)
    article.delete()
    pages = [f"/admin/edited/article/recover/{one.pk}/" for one in (newest, oldest)]
    hers, his = opened(anna, pages[0]), opened(bob, pages[1])
    assert (hers.fields["title"], his.fields["title"]) == (["Second"], ["First"])
    assert hers.send(title="Anna's").status_code == 302
    assert his.send().status_code == 302
    assert Article.objects.get(pk=pk).title == "Anna's"
    assert "Nothing was recovered: this article exists again." in told(bob, LIST)
    assert bob.get(pages[1]).status_code == 302


@cache
def remembered() -> Any:
    """Return a model whose old versions django-simple-history keeps: its app must be installed."""
    from simple_history.models import HistoricalRecords

    class Remembered(Row):
        title = models.CharField(max_length=40)
        views = models.IntegerField(default=0, editable=False)
        history = HistoricalRecords()

        class Meta:
            app_label = "edited"

        def __str__(self) -> str:
            return self.title

    return Remembered


@pytest.fixture
def history(settings: Settings, register: Callable[..., None]) -> Iterator[str]:
    """Return the path to which the paths of the old versions of a row are relative."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "simple_history"]
    from simple_history.admin import SimpleHistoryAdmin

    model = remembered()
    with connection.schema_editor() as editor:
        editor.create_model(model)
        editor.create_model(model.history.model)
    register(type("RememberedAdmin", (EditLockMixin, SimpleHistoryAdmin), {}), model)
    row = model.objects.create(title="First", views=1)
    row.title, row.views = "Second", 2
    row.save()
    yield f"/admin/edited/remembered/{row.pk}/history/"
    with connection.schema_editor() as editor:
        editor.delete_model(model.history.model)
        editor.delete_model(model)


def list_of(*rows: Article) -> dict[str, Any]:
    """Return what a list sends that saves all rows with a new title."""
    from redlock_django.edit_locks.versions import row_version

    count = len(rows)
    fields: dict[str, Any] = {"_save": "1", "form-TOTAL_FORMS": count, "form-INITIAL_FORMS": count}
    for number, row in enumerate(sorted(rows, key=lambda row: -row.pk)):
        stored = Article.objects.get(pk=row.pk)
        about = {"id": row.pk, "title": f"{count - 1 - number} saved"}
        about["_edit_version"] = row_version(stored, {"views"})
        fields |= {f"form-{number}-{name}": value for name, value in about.items()}
    return fields


def told(client: Client, path: str) -> str:
    return str(opened(client, path, "").text)


def old_version(client: Client, history: str, title: str) -> Any:
    number = remembered().history.filter(title=title).first().history_id
    return opened(client, f"{history}{number}/", "remembered_form")


def test_an_old_version_replaces_only_the_row_as_it_was(anna: Client, history: str) -> None:
    hers = old_version(anna, history, "First")
    assert hers.fields["title"] == ["First"]
    remembered().objects.update(title="Bob's")
    assert hers.send().status_code == 200
    assert "this remembered was changed after you opened this page" in hers.text
    assert "<td>First</td><td>Bob&#x27;s" in hers.text
    row = remembered().objects.get()
    assert (row.title, row.views) == ("Bob's", 2)
    assert old_version(anna, history, "First").send().status_code == 302
    row.refresh_from_db()
    assert (row.title, row.views) == ("First", 1), "also what the form does not have"


def test_an_old_version_of_a_deleted_row_is_saved_if_there_is_still_none(
    anna: Client, bob: Client, history: str
) -> None:
    remembered().objects.all().delete()
    hers, his = (old_version(client, history, "First") for client in (anna, bob))
    assert hers.send(title="Anna's").status_code == 302
    assert his.send().status_code == 200
    assert "<td>First</td><td>Anna&#x27;s" in his.text
    assert remembered().objects.get().title == "Anna's"


def test_a_row_that_was_deleted_is_not_made_again_by_an_old_page(
    anna: Client, history: str
) -> None:
    hers = old_version(anna, history, "First")
    remembered().objects.all().delete()
    assert hers.send().status_code == 200
    assert "this remembered was deleted after you opened this page" in hers.text
    assert not remembered().objects.exists()


@cache
def tagged() -> Any:
    """Return a model with tags of django-taggit: its app must be installed."""
    from taggit.managers import TaggableManager

    class Tagged(Row):
        title = models.CharField(max_length=40)
        labels = TaggableManager()

        class Meta:
            app_label = "edited"

    return Tagged


@pytest.fixture
def labels(settings: Settings, tables: None) -> Iterator[None]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "taggit"]
    from taggit.models import Tag, TaggedItem

    if admin.site.is_registered(Tag):  # in the admin of later tests, which have no such app
        admin.site.unregister(Tag)
    every = [Tag, TaggedItem, tagged()]
    with connection.schema_editor() as editor:
        for model in every:
            editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in reversed(every):
            editor.delete_model(model)


@pytest.mark.usefixtures("labels")
def test_tags_of_django_taggit_are_compared(
    register: Callable[..., None], anna: Client, bob: Client
) -> None:
    register(type("TaggedAdmin", (EditLockMixin, admin.ModelAdmin), {}), tagged())
    row = tagged().objects.create(title="Old")
    row.labels.add("one")
    path = f"/admin/edited/tagged/{row.pk}/change/"
    hers, his = (opened(client, path, "tagged_form") for client in (anna, bob))
    assert his.send(labels="one,two").status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert '<th scope="row">Tags</th><td>one</td><td>one, two' in hers.text
    assert sorted(row.labels.names()) == ["one", "two"]
    assert hers.send().status_code == 302
    assert sorted(row.labels.names()) == ["one"]
