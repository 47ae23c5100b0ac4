"""Two saves at the same moment: one wins, on every database, with and without ATOMIC_REQUESTS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django import forms
from django.db import OperationalError, connections, transaction
from django.test import RequestFactory
from django.views.generic import UpdateView

from redlock_django import EditLockViewMixin, InvalidRedlock
from tests.edit_locks.conftest import MEMORY, Router
from tests.edit_locks.models import Article, Country, Tag
from tests.edit_locks.pages import form_of
from tests.live.transactions.conftest import database_alias

if TYPE_CHECKING:
    from pytest_django import Settings

    _UpdateView = UpdateView[Article, Any]
else:
    _UpdateView = UpdateView

pytestmark = pytest.mark.live
WAIT = 60


@pytest.fixture(autouse=True)
def _no_table_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redlock_django.edit_locks.versions._checked", set())


@pytest.fixture(autouse=True)
def _store(settings: Settings) -> None:
    """Keep locks in memory: threads that dial masters that do not run delay the next test."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    settings.DATABASE_ROUTERS = [Router()]


def entry_of(kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return an entry of DATABASES: the name of a database, "-", and its transactions."""
    vendor, _, transactions = kind.partition("-")
    if vendor == "sqlite":
        mode = "DEFERRED" if transactions else "IMMEDIATE"
        path = request.getfixturevalue("tmp_path") / "db"
        entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
        return {**entry, "OPTIONS": {"transaction_mode": mode, "timeout": WAIT}}
    entry = request.getfixturevalue(vendor)
    if transactions:
        level = psycopg.IsolationLevel.REPEATABLE_READ
        return {**entry, "OPTIONS": {"isolation_level": level}}
    return dict(entry)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def alias(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[str]:
    """Return a second database of the site, with the tables of articles."""
    entry = entry_of(request.param, request)
    with django_db_blocker.unblock(), database_alias("edited", entry):
        with connections["edited"].schema_editor() as editor:
            editor.create_model(Tag)
            editor.create_model(Article)
            editor.create_model(Country)
        yield "edited"
        with connections["edited"].schema_editor() as editor:
            editor.delete_model(Country)
            editor.delete_model(Article)
            editor.delete_model(Tag)


class Edit(EditLockViewMixin, _UpdateView):
    """A view that waits between the comparison and the UPDATE."""

    fields = ("title", "tags")
    success_url = "/"
    compared: threading.Event | None = None
    goes_on: threading.Event | None = None

    model = Article

    def form_valid(self, form: Any) -> Any:
        if self.compared and self.goes_on:
            self.compared.set()
            assert self.goes_on.wait(WAIT)
        return super().form_valid(form)


def page_of(article: Any, view: type[Edit] = Edit) -> dict[str, list[str]]:
    response = view.as_view()(RequestFactory().get("/"), pk=article.pk)
    form = response.context_data["form"]
    return form_of(f"<form>{form.as_p()}</form>")


def send(view: Any, article: Any, fields: dict[str, list[str]], **more: Any) -> Any:
    return view(RequestFactory().post("/", {**fields, **more}), pk=article.pk)


def in_thread(alias: str, work: Callable[[], Any]) -> None:
    """Do something in a transaction of another connection."""

    def run() -> None:
        try:
            work()
        finally:
            connections[alias].close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


def save_both(
    article: Article, alias: str, *, atomic: bool, waits: bool = True,
    edit: type[Edit] = Edit, field: str = "title",
) -> dict[str, Any]:  # fmt: skip
    """Save "Anna's" and "Bob's" at once; return the status or the error of each.

    Bob's `waits` for hers, or fails at once.
    """
    fields = page_of(article, edit)
    compared, goes_on = threading.Event(), threading.Event()
    slow = edit.as_view(compared=compared, goes_on=goes_on)
    found: dict[str, Any] = {}

    def run(name: str, view: Any) -> None:
        try:
            with ExitStack() as stack:
                if atomic:
                    stack.enter_context(transaction.atomic(using=alias))
                found[name] = send(view, article, fields, **{field: name}).status_code
        except OperationalError as error:
            found[name] = error
        finally:
            connections[alias].close()

    first = threading.Thread(target=run, args=("Anna's", slow))
    second = threading.Thread(target=run, args=("Bob's", edit.as_view()))
    first.start()
    assert compared.wait(WAIT)
    second.start()
    second.join(0.3)  # in which he waits for her row
    assert ("Bob's" in found) is not waits
    goes_on.set()
    first.join(WAIT)
    second.join(WAIT)
    article.refresh_from_db()
    return found


@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_of_two_saves_at_once_one_is_refused(alias: str, atomic: bool) -> None:
    article = Article.objects.using(alias).create(title="Old")
    assert save_both(article, alias, atomic=atomic) == {"Anna's": 302, "Bob's": 200}
    assert article.title == "Anna's"


class NoteForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form with a field that is saved in another table, and read when the form is made."""

    note = forms.CharField()

    class Meta:
        model = Article
        fields = ("title",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["note"] = Tag.objects.get().name

    def save(self, commit: bool = True) -> Any:
        Tag.objects.update(name=self.cleaned_data["note"])
        return super().save(commit)


class EditNote(Edit):
    fields = None  # type: ignore[assignment]
    form_class = NoteForm


def test_of_two_saves_of_another_table_at_once_one_is_refused(alias: str) -> None:
    article = Article.objects.using(alias).create(title="Old")
    Tag.objects.using(alias).create(name="old")
    found = save_both(article, alias, atomic=False, edit=EditNote, field="note")
    assert found == {"Anna's": 302, "Bob's": 200}
    assert Tag.objects.using(alias).get().name == "Anna's"


@pytest.mark.parametrize("alias", ["sqlite-deferred"], indirect=True)
def test_a_deferred_transaction_of_sqlite_overwrites_nothing(alias: str) -> None:
    article = Article.objects.using(alias).create(title="Old")
    assert save_both(article, alias, atomic=False) == {"Anna's": 302, "Bob's": 200}
    # A transaction that has read before the other commits cannot write any more.
    found = save_both(article, alias, atomic=True, waits=False)
    assert found["Anna's"] == 302
    assert "locked" in str(found["Bob's"])
    assert article.title == "Anna's"


@pytest.mark.parametrize("alias", ["postgres-repeatable"], indirect=True)
@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_repeatable_read_of_postgresql_overwrites_nothing(alias: str, atomic: bool) -> None:
    article = Article.objects.using(alias).create(title="Old")
    found = save_both(article, alias, atomic=atomic)
    assert found["Anna's"] == 302
    assert "could not serialize" in str(found["Bob's"])
    assert article.title == "Anna's"


def test_a_tag_that_is_added_at_once_is_kept(alias: str) -> None:
    article = Article.objects.using(alias).create(title="Old")
    hers, his = (Tag.objects.using(alias).create(name=name) for name in ("hers", "his"))
    compared, goes_on = threading.Event(), threading.Event()
    slow = Edit.as_view(compared=compared, goes_on=goes_on)
    fields = page_of(article)

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        finally:
            connections[alias].close()

    saves = threading.Thread(
        target=run, args=(lambda: send(slow, article, fields, tags=[hers.pk]),)
    )
    adds = threading.Thread(target=run, args=(lambda: article.tags.add(his),))
    saves.start()
    assert compared.wait(WAIT)
    adds.start()
    adds.join(0.3)  # in which the row of the article is locked
    assert adds.is_alive()
    goes_on.set()
    saves.join(WAIT)
    adds.join(WAIT)
    assert {*article.tags.using(alias).all()} == {hers, his}


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
@pytest.mark.parametrize("table", ["edited_article", "edited_article_tags"])
def test_a_table_without_transactions_is_refused(alias: str, table: str) -> None:
    article = Article.objects.using(alias).create(title="Old")
    fields = page_of(article)
    with connections[alias].cursor() as cursor:
        for name, about in (
            connections[alias].introspection.get_constraints(cursor, "edited_article_tags").items()
        ):
            if about["foreign_key"]:
                cursor.execute(f"ALTER TABLE edited_article_tags DROP FOREIGN KEY {name}")
        cursor.execute(f"ALTER TABLE {table} ENGINE=MyISAM")
    says = f"the table '{table}' of 'edited' has the engine MyISAM.*ALTER TABLE {table} ENGINE"
    with pytest.raises(InvalidRedlock, match=says):
        send(Edit.as_view(), article, fields, title="Anna's")
    article.refresh_from_db()
    assert article.title == "Old"


def test_what_differs_in_case_only_is_a_change(alias: str) -> None:
    article = Article.objects.using(alias).create(title="Old", extra={"b": 1, "a": [1.5]})
    fields = page_of(article)
    Article.objects.using(alias).update(title="old")
    assert send(Edit.as_view(), article, fields, title="Anna's").status_code == 200
    assert send(Edit.as_view(), article, page_of(article), title="Anna's").status_code == 302


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
def test_a_transaction_that_reads_old_rows_is_refused(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    article = Article.objects.using(alias).create(title="Old")
    fields = page_of(article)
    monkeypatch.setattr(connections[alias], "isolation_level", "repeatable read")
    with pytest.raises(InvalidRedlock, match="Remove 'isolation_level' from its OPTIONS"):
        send(Edit.as_view(), article, fields, title="Anna's")


@pytest.mark.parametrize("alias", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_a_key_that_another_inserts_meanwhile_is_not_overwritten(alias: str, atomic: bool) -> None:
    """SQLite has one writer at a time, so nobody inserts a row then."""
    rows = Country.objects.using(alias)
    row = rows.create(code="at", name="Austria")
    noted: list[str] = []

    class EditCountry(Edit):
        model: type[Any] = Country
        fields = ("code", "name")

        def form_valid(self, form: Any) -> Any:
            if not noted:
                noted.append("once")
                rows.create(code="xx", name="saved before")
                in_thread(alias, lambda: rows.create(code="au", name="Australia"))
            return super().form_valid(form)

    fields = page_of(row, EditCountry)
    outer = transaction.atomic(using=alias) if atomic else nullcontext()
    with outer:
        answer = send(EditCountry.as_view(), row, fields, code="au", name="typed")
        assert (answer.status_code, answer.context_data["form"].data["name"]) == (200, "typed")
        assert "already exists" in str(answer.context_data["form"].errors)
    assert {one.code: one.name for one in rows.all()} == {"at": "Austria", "au": "Australia"}
