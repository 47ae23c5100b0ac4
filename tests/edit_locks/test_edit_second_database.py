"""Rows in a second database of the site, to which a router leads: all paths of the admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.db import connections
from django.test import Client

from redlock_django import EditLockMixin
from tests.edit_locks.conftest import Router, opened
from tests.edit_locks.models import Article, LongArticle, Paragraph, Tag
from tests.edit_locks.pages import form_of
from tests.live.transactions.conftest import database_alias

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "edited"])
Base: Any = admin.ModelAdmin
LIST = "/admin/edited/article/"
ALIAS = "edited"


@pytest.fixture(scope="module", autouse=True)
def _second(
    tables: None, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[None]:
    path = tmp_path_factory.mktemp("second") / "db"
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    with django_db_blocker.unblock(), database_alias(ALIAS, entry):
        with connections[ALIAS].schema_editor() as editor:
            for model in (Tag, Article, Paragraph, LongArticle):
                editor.create_model(model)
        yield


@pytest.fixture
def began(register: Callable[..., None], settings: Settings) -> list[bool]:
    """Return, for each save of a row, whether it was inside a transaction of its database."""
    found: list[bool] = []

    def publish(self: Any, request: Any, queryset: Any) -> None:
        found.append(connections[ALIAS].in_atomic_block)
        queryset.update(state="public")

    def save_model(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        found.append(connections[ALIAS].in_atomic_block)
        obj.save()

    inlines = [type("Paragraphs", (admin.TabularInline,), {"model": Paragraph, "extra": 0})]
    attributes = {
        "actions": ("publish",), "publish": publish, "save_model": save_model, "inlines": inlines,
        "list_display": ("title", "state"), "list_editable": ("state",),
    }  # fmt: skip
    register(type("ArticleAdmin", (EditLockMixin, Base), attributes))
    settings.DATABASE_ROUTERS = [Router()]
    return found


def test_every_path_compares_rows_of_a_second_database(anna: Client, began: list[bool]) -> None:
    row = Article.objects.create(title="Old")
    assert row._state.db == ALIAS
    row.paragraphs.create(text="1")
    page = opened(anna, f"{LIST}{row.pk}/change/")
    rows = opened(anna, LIST, "changelist-form")
    confirmed = opened(anna, f"{LIST}{row.pk}/delete/", "")
    Article.objects.update(title="Bob's")
    action = {"index": "0", "_selected_action": [str(row.pk)], "action": "publish"}
    assert page.send(title="Anna's").status_code == 200
    assert rows.send({"form-0-state": "public"}, _save="Save").status_code == 200
    assert confirmed.send().status_code == 302
    stale = opened(anna, LIST, "changelist-form")
    Article.objects.update(title="Carl's")
    stale.send(action)
    row.refresh_from_db()
    assert (row.title, row.state, began) == ("Carl's", "draft", [])
    # Now all of them have seen it.
    assert opened(anna, f"{LIST}{row.pk}/change/").send(title="Anna's").status_code == 302
    rows = opened(anna, LIST, "changelist-form")
    assert rows.send({"form-0-state": "public"}, _save="Save").status_code == 302
    Article.objects.update(state="draft")
    opened(anna, LIST, "changelist-form").send(action)
    row.refresh_from_db()
    assert (row.title, row.state, began) == ("Anna's", "public", [True] * 3)
    asked = opened(anna, LIST, "changelist-form").send({**action, "action": "delete_selected"})
    anna.post(LIST, form_of(asked.content.decode()))
    assert not Article.objects.exists()
