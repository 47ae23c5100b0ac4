"""`edit_conflict = "refuse"`: while another editor has a row open, no page saves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from redlock_django import EditLockMixin, locks
from tests.edit_locks.conftest import opened, report, said
from tests.edit_locks.models import Article, Paragraph
from tests.edit_locks.pages import OpenPage

pytestmark = pytest.mark.django_db
Base: Any = admin.ModelAdmin
LIST = "/admin/edited/article/"


@pytest.fixture(autouse=True)
def _refuses(register: Callable[..., None]) -> None:
    def publish(self: Any, request: Any, queryset: Any) -> None:
        queryset.update(state="public")

    inlines = [type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, "extra": 1})]
    attributes = {
        "edit_conflict": "refuse",
        "list_display": ("title", "state"),
        "list_editable": ("state",),
        "actions": ("publish",),
        "publish": publish,
        "inlines": inlines,
    }
    register(type("ArticleAdmin", (EditLockMixin, Base), attributes))


@pytest.fixture
def his(bob: Client, anna: Client, change: str) -> OpenPage:
    """Bob's page, which was stopped for so long that Anna has the row open by now."""
    page = opened(bob, change)
    assert report(page, "leave") == 204
    assert said(opened(anna, change)) == ""
    return page


def test_refuse_shows_a_page_to_read(anna: Client, bob: Client, change: str) -> None:
    hers = opened(anna, change)
    his = OpenPage(bob, change)
    assert said(his).startswith("Anna")
    assert 'name="_save"' not in his.text
    assert "Edit anyway" not in his.text
    assert report(his, "take")["editor"].startswith("Anna")
    assert report(hers, "renew")["editor"] == ""


def test_a_save_is_refused_and_loses_nothing_typed(
    his: OpenPage, anna: Client, article: Article, change: str
) -> None:
    assert his.send({"paragraphs-0-text": "his"}, title="Bob's", body="typed").status_code == 200
    assert "Not saved. Anna has had this open since" in his.text
    entered = [his.fields[name] for name in ("title", "body", "paragraphs-0-text")]
    assert entered == [["Bob's"], ["typed"], ["his"]]
    article.refresh_from_db()
    assert article.title == "Old"
    hers = opened(anna, change)  # she sees the same row, and leaves it without a change
    assert hers.fields["title"] == ["Old"]
    assert report(hers, "leave") == 204
    assert his.send().status_code == 302
    article.refresh_from_db()
    assert (article.title, article.paragraphs.get().text) == ("Bob's", "his")


def test_the_editor_who_has_it_open_saves(anna: Client, bob: Client, change: str) -> None:
    hers = opened(anna, change)
    OpenPage(bob, change)
    assert hers.send(title="Anna's").status_code == 302


def test_the_id_of_a_page_counts_for_its_user_only(
    his: OpenPage, anna: Client, change: str
) -> None:
    hers = opened(anna, change)
    his.page_id = hers.page_id
    assert report(his, "leave") == 204
    assert report(his, "renew")["editor"].startswith("Anna")
    assert his.send(title="Bob's", _edit_page=hers.page_id).status_code == 200
    assert "Not saved. Anna has had this open since" in his.text


def test_another_tab_of_the_same_user_saves(anna: Client, change: str) -> None:
    first, _ = opened(anna, change), opened(anna, change)
    assert first.send(title="Anna's").status_code == 302


@pytest.mark.usefixtures("his")
def test_deletions_actions_and_lists_are_refused(bob: Client, article: Article) -> None:
    def told() -> str:
        return str(opened(bob, LIST, "changelist-form").text)

    path = f"{LIST}{article.pk}/delete/"
    assert opened(bob, path, "").send().status_code == 302
    assert "Nothing was done. Anna has had this open since" in told()
    page = opened(bob, LIST, "changelist-form")
    chosen = {"index": "0", "_selected_action": [str(article.pk)]}
    page.send({**chosen, "action": "publish"})
    assert "Nothing was done. Anna has had this open since" in told()
    page.send({**chosen, "action": "delete_selected"})
    assert "Nothing was done. Anna has had this open since" in told()
    assert page.send({"form-0-state": "public"}, _save="Save").status_code == 200
    assert "Not saved. Anna has had this open since" in page.text
    assert Article.objects.get().state == "draft"


def test_a_list_can_be_saved_when_the_other_has_left(
    his: OpenPage, bob: Client, anna: Client, change: str
) -> None:
    page = opened(bob, LIST, "changelist-form")
    assert page.send({"form-0-state": "public"}, _save="Save").status_code == 200
    assert report(opened(anna, change), "leave") == 204
    assert page.send(_save="Save").status_code == 302
    assert Article.objects.get().state == "public"


@pytest.mark.usefixtures("his")
def test_the_store_is_asked_once_for_all_rows(
    bob: Client, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Article.objects.create(title="Other")
    backend: Any = locks["default"].backend
    look, asked = backend.look, []

    def noted(names: Any) -> Any:
        asked.append(len(names))
        return look(names)

    monkeypatch.setattr(backend, "look", noted)
    page = opened(bob, LIST, "changelist-form")
    states = {"form-0-state": "public", "form-1-state": "public"}
    assert page.send(states, _save="Save").status_code == 200
    assert page.text.count("Not saved. Anna has had this open since") == 1, "not of the other row"
    page = opened(bob, LIST, "changelist-form")
    chosen = [str(article.pk), str(other.pk)]
    page.send(index="0", _selected_action=chosen, action="publish")
    assert asked == [2, 2]
    assert not Article.objects.filter(state="public").exists()
