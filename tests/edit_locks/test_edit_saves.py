"""No save overwrites what its editor has not seen, on every path of the admin that saves."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from redlock_django import EditLockMixin
from redlock_django.edit_locks.versions import row_version, version_of
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import (
    Article,
    Country,
    FencedArticle,
    LongArticle,
    Paragraph,
    Tag,
    Versioned,
)
from tests.edit_locks.pages import OpenPage, form_of

if TYPE_CHECKING:
    from pytest_django import Settings

    _ModelAdmin = admin.ModelAdmin[Any]
    _TabularInline = admin.TabularInline[Any, Any]
else:
    _ModelAdmin, _TabularInline = admin.ModelAdmin, admin.TabularInline

pytestmark = pytest.mark.django_db

LIST = "/admin/edited/article/"


class Paragraphs(_TabularInline):
    model = Paragraph
    extra = 1


class ArticleAdmin(EditLockMixin, _ModelAdmin):
    inlines = (Paragraphs,)
    list_display = ("title", "state")
    list_editable = ("state",)
    save_as = True
    edit_ignore = ("views",)
    edit_reading_actions = ("export",)
    actions = ("publish", "export")

    def publish(self, request: Any, queryset: Any) -> None:
        queryset.update(state="public")

    def export(self, request: Any, queryset: Any) -> None:
        self.message_user(request, f"{len(queryset)} exported")


@pytest.fixture(autouse=True)
def _admin(register: Callable[..., None]) -> None:
    register(ArticleAdmin)


def test_the_second_of_two_saves_is_refused_with_both_versions(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    hers, his = opened(anna, change), opened(bob, change)
    assert his.send(title="Bob's").status_code == 302
    assert hers.send(title="Anna's", body="Long typed text").status_code == 200
    assert "this article was changed after you opened this page" in hers.text
    assert '<th scope="row">Title</th><td>Anna&#x27;s</td><td>Bob&#x27;s' in hers.text
    assert hers.fields["title"] == ["Anna's"]
    assert hers.fields["body"] == ["Long typed text"], "nothing that was typed is lost"
    article.refresh_from_db()
    assert (article.title, article.body) == ("Bob's", "Text")
    # Now she has seen his version, and may overwrite it.
    assert hers.send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.body) == ("Anna's", "Long typed text")


def test_a_third_version_is_refused_again(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    hers, his = opened(anna, change), opened(bob, change)
    his.send(title="Bob's")
    assert hers.send(title="Anna's").status_code == 200
    Article.objects.update(title="A job's")
    assert hers.send(title="Anna's").status_code == 200
    assert "A job&#x27;s" in hers.text
    article.refresh_from_db()
    assert article.title == "A job's"


@pytest.mark.parametrize(
    "changed",
    [
        {"extra": {"a": [1, 2]}},
        {"extra": '{"a": [1]}'},
        {"data": b"\x01"},
        {"data": None},
        {"price": "0.01"},
        {"body": ""},
        {"state": "public"},
        {"title": "old"},  # MariaDB's default collation calls it equal
    ],
    ids=str,
)
def test_every_column_counts(
    anna: Client, article: Article, change: str, changed: dict[str, Any]
) -> None:
    hers = opened(anna, change)
    Article.objects.update(**changed)
    assert hers.send(title="Anna's").status_code == 200
    assert "edit" in hers.text
    article.refresh_from_db()
    assert article.title != "Anna's"


def test_the_order_of_json_keys_does_not_count(anna: Client, article: Article, change: str) -> None:
    Article.objects.update(extra={"a": 1, "b": 2})
    hers = opened(anna, change)
    Article.objects.update(extra={"b": 2, "a": 1})
    assert hers.send(title="Anna's").status_code == 302


def test_the_many_to_many_fields_of_a_version_are_kept_apart(article: Article) -> None:
    one, other = {"a": ["0"], "b": ["b"]}, {"a": ["0", "b"], "b": []}
    assert row_version(article, sets=one) != row_version(article, sets=other)


def test_a_field_that_is_ignored_is_saved_as_it_is_stored(
    anna: Client, article: Article, change: str
) -> None:
    hers = opened(anna, change)
    Article.objects.update(views=7)
    assert hers.send(title="Anna's").status_code == 302
    article.refresh_from_db()
    assert (article.title, article.views) == ("Anna's", 7)


def test_an_unchanged_row_is_saved(anna: Client, article: Article, change: str) -> None:
    hers = opened(anna, change)
    assert hers.send(title="").status_code == 200, "an ordinary error of the form"
    assert "was changed after" not in hers.text
    assert hers.send(title="Anna's").status_code == 302
    article.refresh_from_db()
    assert (article.title, article.data and bytes(article.data)) == ("Anna's", b"\x00\xff")


def test_a_save_without_the_version_is_refused(anna: Client, article: Article, change: str) -> None:
    hers = opened(anna, change)
    for version in (None, "", "[]", "{}", '{"title": 3}', '{"title": "x"}'):
        assert hers.send(title="Anna's", _edit_version=version).status_code == 200
    article.refresh_from_db()
    assert article.title == "Old"


def test_a_version_does_not_reveal_a_column(
    article: Article, anna: Client, change: str, settings: Settings
) -> None:
    """A reader of the page cannot try out values: the digests are keyed."""
    shown = json.loads(opened(anna, change).fields["_edit_version"][0])
    assert "views" not in shown, "it is ignored"
    other = Article(pk=article.pk, title="Old")
    own = version_of(other, ["title"], {})
    assert own["title"] == shown["title"], "of the same row"
    settings.SECRET_KEY = "a guess"
    assert version_of(other, ["title"], {})["title"] != shown["title"]


def test_many_to_many_fields_are_compared(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    one, two = Tag.objects.create(name="one"), Tag.objects.create(name="two")
    article.tags.set([one])
    hers, his = opened(anna, change), opened(bob, change)
    assert his.send(tags=[one.pk, two.pk]).status_code == 302
    assert hers.send(title="Anna's").status_code == 200
    assert '<th scope="row">Tags</th><td>one</td><td>one, two' in hers.text
    assert article.tags.count() == 2


def test_rows_of_inlines_are_compared(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    first, second = (article.paragraphs.create(text=text) for text in ("1", "2"))
    hers, his = opened(anna, change), opened(bob, change)
    assert his.send({"paragraphs-0-text": "Bob's"}).status_code == 302
    assert hers.send({"paragraphs-1-text": "Anna's"}).status_code == 200
    assert "<td>1</td><td>Bob&#x27;s" in hers.text
    assert hers.fields["paragraphs-1-text"] == ["Anna's"]
    assert [one.text for one in article.paragraphs.order_by("pk")] == ["Bob's", "2"]
    # His row is as he has seen it: other rows of the page may have changed.
    second.text = "a job's"
    second.save()
    first.refresh_from_db()
    assert his.client.get(change).status_code == 200


def test_many_to_many_fields_of_inlines_are_compared(
    anna: Client, bob: Client, article: Article, change: str
) -> None:
    one, two = Tag.objects.create(name="one"), Tag.objects.create(name="two")
    paragraph = article.paragraphs.create(text="1")
    paragraph.tags.set([one])
    hers, his = opened(anna, change), opened(bob, change)
    assert his.send({"paragraphs-0-tags": [one.pk, two.pk]}).status_code == 302
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 200
    assert '<th scope="row">Tags</th><td>one</td><td>one, two' in hers.text
    assert paragraph.tags.count() == 2
    assert hers.send().status_code == 302
    assert (paragraph.tags.get(), article.paragraphs.get().text) == (one, "Anna's")


def test_a_row_of_an_inline_that_changed_is_not_deleted(
    anna: Client, article: Article, change: str
) -> None:
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    article.paragraphs.update(text="Bob's")
    assert hers.send({"paragraphs-0-DELETE": "on"}).status_code == 200
    assert "this paragraph was changed" in hers.text
    assert article.paragraphs.count() == 1
    assert hers.send({"paragraphs-0-DELETE": "on"}).status_code == 302
    assert article.paragraphs.count() == 0


def test_a_row_of_an_inline_that_was_deleted_is_refused(
    anna: Client, article: Article, change: str
) -> None:
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    article.paragraphs.all().delete()
    assert hers.send({"paragraphs-0-text": "typed"}).status_code == 200
    assert "this paragraph was deleted after you opened" in hers.text
    assert hers.fields["paragraphs-0-text"] == ["typed"]
    assert hers.send({"paragraphs-0-DELETE": "on"}, title="Anna's").status_code == 302


def test_a_row_that_another_has_added_is_kept(anna: Client, article: Article, change: str) -> None:
    hers = opened(anna, change)
    article.paragraphs.create(text="Bob's")
    assert hers.send({"paragraphs-0-text": "Anna's"}).status_code == 302
    assert sorted(one.text for one in article.paragraphs.all()) == ["Anna's", "Bob's"]


def test_list_editable_is_compared(anna: Client, article: Article) -> None:
    other = Article.objects.create(title="Other")
    page = opened(anna, LIST, "changelist-form")
    Article.objects.filter(pk=article.pk).update(state="public")
    assert page.send(_save="Save").status_code == 200
    assert "<td>Draft</td><td>Public" in page.text
    article.refresh_from_db()
    assert article.state == "public"
    number = 0 if page.fields["form-0-id"] == [str(other.pk)] else 1
    assert page.send({f"form-{1 - number}-state": "draft"}, _save="Save").status_code == 302
    article.refresh_from_db()
    assert article.state == "draft"


def test_a_list_is_saved_without_a_row_that_was_deleted(anna: Client, article: Article) -> None:
    first, second = (Article.objects.create(title=title) for title in ("First", "Second"))
    page = opened(anna, LIST, "changelist-form")  # the newest row is above
    first.delete()
    Article.objects.filter(pk=article.pk).update(title="Bob's")
    states = {f"form-{number}-state": "public" for number in range(3)}
    assert page.send(states, _save="Save").status_code == 200
    assert "Rows that were deleted after you opened this page: 1." in page.text
    assert "this article was changed after you opened this page" in page.text
    assert page.fields["form-TOTAL_FORMS"] == ["2"]
    assert page.fields["form-1-state"] == ["public"], "what was entered is still there"
    assert page.send(_save="Save").status_code == 302
    assert {row.pk: row.state for row in Article.objects.all()} == {
        article.pk: "public",
        second.pk: "public",
    }


@pytest.fixture
def pages(register: Callable[..., None]) -> None:
    """Make the list one with pages, a filter and a search."""
    attributes = {
        "list_display": ("title", "body"), "list_editable": ("body",), "list_filter": ("state",),
        "list_per_page": 2, "ordering": ("title",), "search_fields": ("price",),
    }  # fmt: skip
    register(type("ArticleAdmin", (EditLockMixin, _ModelAdmin), attributes))
    Article.objects.bulk_create(Article(title=title, price=1) for title in "ABCDE")


def forms_of(page: OpenPage) -> dict[str, str]:
    """Return the form of each row in a list, by the title that is shown beside it."""
    return dict(
        re.findall(r'/change/[^>]*>(\w+)</a>.*?name="(form-\d)-body"', page.text, re.DOTALL)
    )


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("query", ["state__exact=draft", "q=1", "p=1"])
def test_a_list_that_is_refused_shows_the_rows_that_it_has_sent(anna: Client, query: str) -> None:
    page = opened(anna, f"{LIST}?{query}", "changelist-form")
    assert forms_of(page) == {"A": "form-0", "B": "form-1"}
    Article.objects.filter(title__in="AB").update(state="public", price=2)
    Article.objects.bulk_create(Article(title=title) for title in ("00", "01"))
    Article.objects.filter(title="A").update(title="A2")
    assert page.send({"form-1-body": "Anna's"}, _save="Save").status_code == 200
    assert forms_of(page) == {"A2": "form-0", "B": "form-1"}, "although both have left this page"
    assert page.send(_save="Save").status_code == 302
    assert Article.objects.get(body="Anna's").title == "B"


@pytest.mark.usefixtures("pages")
def test_a_list_is_saved_from_a_page_that_there_is_no_more(anna: Client) -> None:
    page = opened(anna, f"{LIST}?p=3", "changelist-form")
    assert forms_of(page) == {"E": "form-0"}
    Article.objects.filter(title="A").delete()
    Article.objects.filter(title="E").update(price=2)
    assert page.send({"form-0-body": "Anna's"}, _save="Save").status_code == 200
    assert forms_of(page) == {"E": "form-0"}
    assert page.send(_save="Save").status_code == 302
    assert Article.objects.get(body="Anna's").title == "E"


def test_a_row_that_was_deleted_can_be_saved_as_a_new_one(
    anna: Client, article: Article, change: str
) -> None:
    article.paragraphs.create(text="1")
    hers = opened(anna, change)
    article.delete()
    assert hers.send({"paragraphs-0-text": "typed"}, title="Anna's").status_code == 200
    assert "this article was deleted after you opened this page" in hers.text
    assert (hers.fields["title"], hers.fields["paragraphs-0-text"]) == (["Anna's"], ["typed"])
    assert 'action="/admin/edited/article/add/"' in hers.text
    assert not Article.objects.exists()
    hers.path = "/admin/edited/article/add/"
    assert hers.send().status_code == 302
    assert Paragraph.objects.get().article == Article.objects.get(title="Anna's")


def test_save_as_new_overwrites_nothing(anna: Client, article: Article, change: str) -> None:
    hers = opened(anna, change)
    Article.objects.update(title="Bob's")
    assert hers.send(title="Anna's", _saveasnew="1").status_code == 302
    assert {one.title for one in Article.objects.all()} == {"Bob's", "Anna's"}


def test_delete_is_compared(anna: Client, article: Article) -> None:
    path = f"/admin/edited/article/{article.pk}/delete/"
    hers = opened(anna, path, "")
    Article.objects.update(title="Bob's")
    assert hers.send().status_code == 302
    assert Article.objects.count() == 1
    again = opened(anna, path, "")
    assert "has changed since the page was opened: Bob&#x27;s" in again.text
    article.paragraphs.create(text="new")
    assert again.send().status_code == 302
    assert "what would be changed with it has changed" in opened(anna, path, "").text
    assert opened(anna, path, "").send().status_code == 302
    assert Article.objects.count() == 0


def run(client: Client, action: str, *rows: Article, **more: Any) -> Any:
    page = opened(client, LIST, "changelist-form")
    chosen = [str(row.pk) for row in rows]
    return lambda: page.send(action=action, index="0", _selected_action=chosen, **more)


def told(client: Client) -> str:
    return str(opened(client, LIST, "changelist-form").text)


def test_actions_are_compared(anna: Client, article: Article) -> None:
    other = Article.objects.create(title="Other")
    publish = run(anna, "publish", article, other)
    Article.objects.filter(pk=article.pk).update(title="Bob's")
    publish()
    assert "has changed since the page was opened: Bob&#x27;s" in told(anna)
    assert Article.objects.filter(state="public").count() == 0
    run(anna, "publish", article, other)()
    assert Article.objects.filter(state="public").count() == 2


def test_an_action_finds_the_version_of_a_row_whose_key_has_a_space(
    register: Callable[..., None], anna: Client
) -> None:
    def note(self: Any, request: Any, queryset: Any) -> None:
        queryset.update(name="noted")

    attributes = {"actions": ("note",), "note": note}
    register(type("CountryAdmin", (EditLockMixin, admin.ModelAdmin), attributes), Country)
    Country.objects.create(code=" b", name="Old")
    page = opened(anna, "/admin/edited/country/", "changelist-form")
    assert page.send(action="note", index="0", _selected_action=[" b"]).status_code == 302
    assert Country.objects.get().name == "noted"


def test_a_list_sends_the_versions_of_all_rows_in_one_input(
    anna: Client, settings: Settings
) -> None:
    rows = Article.objects.bulk_create(Article(title=str(number)) for number in range(30))
    assert told(anna).count('name="_edit_rows"') == 1, "not in the form that logs out"
    publish = run(anna, "publish", rows[0])
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 10 + 3 * len(rows)  # its form, id and version
    assert publish().status_code == 302
    assert Article.objects.filter(state="public").count() == 1


def test_actions_on_rows_that_were_not_shown_are_refused(anna: Client, article: Article) -> None:
    run(anna, "publish", article, select_across="1")()
    assert "rows of other pages were selected" in told(anna)
    assert not Article.objects.filter(state="public").exists()
    run(anna, "export", article, select_across="1")()
    assert "1 exported" in told(anna)


def test_delete_selected_is_compared(anna: Client, article: Article) -> None:
    ask = run(anna, "delete_selected", article)
    page = ask()
    assert "_edit_rows" in page.content.decode()
    confirmed = form_of(page.content.decode())
    Article.objects.update(title="Bob's")
    anna.post(LIST, confirmed)
    assert "has changed since the page was opened: Bob&#x27;s" in told(anna)
    assert Article.objects.count() == 1
    confirmed = form_of(run(anna, "delete_selected", article)().content.decode())
    article.paragraphs.create(text="new")
    anna.post(LIST, confirmed)
    assert Article.objects.count() == 1
    assert "what would be changed with it has changed" in told(anna)
    anna.post(LIST, form_of(run(anna, "delete_selected", article)().content.decode()))
    assert Article.objects.count() == 0


def test_a_model_in_two_tables(register: Callable[..., None], anna: Client) -> None:
    register(type("LongAdmin", (EditLockMixin, admin.ModelAdmin), {}), LongArticle)
    row = LongArticle.objects.create(title="Old")
    hers = opened(anna, f"/admin/edited/longarticle/{row.pk}/change/", "longarticle_form")
    Article.objects.update(title="Bob's")
    assert hers.send(pages=2).status_code == 200
    assert hers.send(title="Anna's", pages=2).status_code == 302
    row.refresh_from_db()
    assert (row.title, row.pages) == ("Anna's", 2)


@pytest.mark.parametrize(
    ("model", "changed"),
    [(Versioned, {"version": 1}), (FencedArticle, {"fence": 9, "fence_owner": "0a"})],
)
def test_models_with_a_version_or_a_fence(
    register: Callable[..., None], anna: Client, model: type[Any], changed: dict[str, Any]
) -> None:
    register(type("OtherAdmin", (EditLockMixin, admin.ModelAdmin), {}), model)
    row = model.objects.create(title="Old")
    name = model._meta.model_name
    hers = opened(anna, f"/admin/edited/{name}/{row.pk}/change/", f"{name}_form")
    model.objects.update(**changed)
    assert hers.send(title="Anna's").status_code == 200
    assert "A field that is not on this page has changed" in hers.text
    assert hers.send(title="Anna's").status_code == 302
    for column, value in changed.items():
        assert getattr(model.objects.get(), column) == value


def test_a_page_from_before_a_deployment(
    anna: Client, article: Article, change: str, settings: Settings
) -> None:
    hers = opened(anna, change)
    version = hers.fields["_edit_version"][0].replace('"body"', '"column_that_is_gone"')
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new one"
    anna.force_login(User.objects.get())
    assert hers.send(title="Anna's", _edit_version=version).status_code == 302


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django 6.1 has actions on the change form")
def test_actions_of_the_change_form_are_compared(
    register: Callable[..., None], anna: Client, article: Article, change: str
) -> None:
    def publish(self: Any, request: Any, queryset: Any) -> None:
        queryset.update(state="public")

    locations: Any = importlib.import_module("django.contrib.admin.options").ActionLocation
    publish.locations = [locations.CHANGE_FORM]  # type: ignore[attr-defined]
    attributes = {"actions": ("publish",), "publish": publish}
    register(type("ArticleAdmin", (EditLockMixin, admin.ModelAdmin), attributes))
    hers = opened(anna, change)
    chosen = {"_selected_action": [str(article.pk)], "CHANGE_FORM-action": "publish", "_save": None}
    Article.objects.update(title="Bob's")
    assert hers.send(chosen).status_code == 302
    assert not Article.objects.filter(state="public").exists()
    assert opened(anna, change).send(chosen).status_code == 302
    assert Article.objects.filter(state="public").exists()
