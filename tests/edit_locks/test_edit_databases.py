"""Two saves at the same moment: one wins, on every database, with and without ATOMIC_REQUESTS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test import RequestFactory
from django.views.generic import UpdateView

from redlock_django import EditLockViewMixin, InvalidRedlock
from tests.edit_locks.conftest import MEMORY
from tests.edit_locks.models import Article, Tag
from tests.edit_locks.pages import form_of
from tests.live.transactions.conftest import database_alias

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    _UpdateView = UpdateView[Article, Any]
else:
    _UpdateView = UpdateView

pytestmark = pytest.mark.live
WAIT = 60


@pytest.fixture(autouse=True)
def _store(settings: Settings) -> None:
    """Keep locks in memory: threads that dial masters that do not run delay the next test."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def alias(
    request: pytest.FixtureRequest, settings: Settings, django_db_blocker: Any, tmp_path: Path
) -> Iterator[str]:
    """Return a second database of the site, with the tables of articles."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    if request.param == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": WAIT}
        entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")}
        entry["OPTIONS"] = options  # type: ignore[assignment]
    else:
        entry = request.getfixturevalue(request.param)
    with django_db_blocker.unblock(), database_alias("edited", entry):
        with connections["edited"].schema_editor() as editor:
            editor.create_model(Tag)
            editor.create_model(Article)
        yield "edited"
        with connections["edited"].schema_editor() as editor:
            editor.delete_model(Article)
            editor.delete_model(Tag)


class Edit(EditLockViewMixin, _UpdateView):
    """A view that waits between the comparison and the UPDATE."""

    fields = ("title",)
    success_url = "/"
    compared: threading.Event | None = None
    goes_on: threading.Event | None = None

    def get_queryset(self) -> Any:
        return Article.objects.using("edited")

    def form_valid(self, form: Any) -> Any:
        if self.compared and self.goes_on:
            self.compared.set()
            assert self.goes_on.wait(WAIT)
        return super().form_valid(form)


def page_of(article: Article) -> dict[str, list[str]]:
    response = Edit.as_view()(RequestFactory().get("/"), pk=article.pk)
    form = response.context_data["form"]
    return form_of(f"<form>{form.as_p()}</form>")


def send(view: Any, article: Article, fields: dict[str, list[str]], **more: Any) -> Any:
    return view(RequestFactory().post("/", {**fields, **more}), pk=article.pk)


@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_of_two_saves_at_once_one_is_refused(alias: str, atomic: bool) -> None:
    article = Article.objects.using(alias).create(title="Old")
    fields = page_of(article)
    compared, goes_on = threading.Event(), threading.Event()
    slow = Edit.as_view(compared=compared, goes_on=goes_on)
    statuses: dict[str, int] = {}

    def run(name: str, view: Any) -> None:
        try:
            with ExitStack() as stack:
                if atomic:
                    stack.enter_context(transaction.atomic(using=alias))
                statuses[name] = send(view, article, fields, title=name).status_code
        finally:
            connections[alias].close()

    first = threading.Thread(target=run, args=("Anna's", slow))
    second = threading.Thread(target=run, args=("Bob's", Edit.as_view()))
    first.start()
    assert compared.wait(WAIT)
    second.start()
    second.join(0.3)  # in which he waits for her row
    assert "Bob's" not in statuses
    goes_on.set()
    first.join(WAIT)
    second.join(WAIT)
    assert statuses == {"Anna's": 302, "Bob's": 200}
    article.refresh_from_db()
    assert article.title == "Anna's"


def test_what_differs_in_case_only_is_a_change(alias: str) -> None:
    article = Article.objects.using(alias).create(title="Old", extra={"b": 1, "a": [1.5]})
    fields = page_of(article)
    Article.objects.using(alias).update(title="old")
    assert send(Edit.as_view(), article, fields, title="Anna's").status_code == 200
    assert send(Edit.as_view(), article, page_of(article), title="Anna's").status_code == 302


def test_a_transaction_that_reads_old_rows_is_refused(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections[alias].vendor != "mysql":
        pytest.skip("PostgreSQL raises an error itself, SQLite excludes other writers")
    article = Article.objects.using(alias).create(title="Old")
    fields = page_of(article)
    monkeypatch.setattr(connections[alias], "isolation_level", "repeatable read")
    with pytest.raises(InvalidRedlock, match="Remove 'isolation_level' from its OPTIONS"):
        send(Edit.as_view(), article, fields, title="Anna's")
