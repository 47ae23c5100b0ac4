"""A new row overwrites no row that another user inserts while it is saved."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import IntegrityError
from django.test import Client

from redlock_django import EditLockMixin
from redlock_django.edit_locks.inserted_rows import KeyTaken, insert_only, keys_of
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import Article, Country, LongArticle, Seal, Territory, Versioned
from tests.edit_locks.pages import OpenPage

pytestmark = pytest.mark.django_db
Base: Any = admin.ModelAdmin


@pytest.fixture
def others() -> list[Any]:
    """Return the rows that another user inserts after the form was validated."""
    return []


@pytest.fixture
def put(register: Callable[..., None], others: list[Any]) -> Callable[..., None]:
    """Return a function that registers a ModelAdmin which saves after the other user has."""

    def registered(model: type[Any], **attributes: Any) -> None:
        def save_model(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
            while others:
                others.pop().save()
            obj.save()  # without super()

        made = {"save_model": save_model, "save_as": True, **attributes}
        register(type("RowAdmin", (EditLockMixin, Base), made), model)

    return registered


def page(client: Client, model: type[Any], pk: Any = None) -> OpenPage:
    name = model._meta.model_name
    path = f"/admin/edited/{name}/" + ("add/" if pk is None else f"{pk}/change/")
    return opened(client, path, f"{name}_form")


@pytest.mark.parametrize("path", ["add", "save as new", "another key"])
def test_the_key_that_another_has_taken_is_an_error_of_the_form(
    put: Callable[..., None], others: list[Any], anna: Client, path: str
) -> None:
    put(Country)
    Country.objects.create(code="at", name="Austria")
    shown = page(anna, Country, None if path == "add" else "at")
    others.append(Country(code="au", name="Australia"))
    more: Any = {"_saveasnew": "1"} if path == "save as new" else {}
    assert shown.send(code="au", name="typed", **more).status_code == 200
    assert "Country with this Code already exists" in shown.text
    assert shown.fields["name"] == ["typed"]
    assert [one.code for one in Country.objects.all()] == ["at"], "his is rolled back in this test"
    shown.path = f"/admin/edited/country/{'add/' if path != 'another key' else 'at/change/'}"
    assert shown.send(code="xy", **more).status_code == 302
    assert {one.code: one.name for one in Country.objects.all()}["xy"] == "typed"


def test_a_row_of_a_parent_is_not_overwritten(
    put: Callable[..., None], others: list[Any], anna: Client
) -> None:
    put(Territory)
    shown = page(anna, Territory)
    others.append(Country(code="at", name="Austria"))
    assert shown.send(title="T", code="at", name="typed").status_code == 200
    assert "Country with this Code already exists" in shown.text
    assert not Versioned.objects.exists(), "nothing is left of the attempt"
    assert shown.send(title="T", code="au").status_code == 302
    row = Territory.objects.get()
    shown = page(anna, Territory, row.pk)
    others.append(Country(code="at", name="Austria"))
    assert shown.send(code="at").status_code == 200
    assert Territory.objects.get().code == "au"


def test_a_key_that_save_computes_overwrites_no_row(put: Callable[..., None], anna: Client) -> None:
    def save_model(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        obj.code = "at"
        obj.save()

    put(Country, save_model=save_model, fields=("name",))
    assert page(anna, Country).send(name="Austria").status_code == 302
    shown = page(anna, Country)
    assert shown.send(name="typed").status_code == 200
    assert "Country with this Code already exists" in shown.text
    assert shown.fields["name"] == ["typed"]
    assert Country.objects.get().name == "Austria"


def test_a_row_of_a_child_is_inserted_for_a_row_of_the_parent_that_exists(
    put: Callable[..., None], anna: Client
) -> None:
    """`save_base(raw=True)` leaves the tables of parents as they are, and names no database."""

    def save_model(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        obj.pk = row.pk
        obj.save_base(raw=True)

    row = Article.objects.create(title="Old")
    put(LongArticle, save_model=save_model, fields=("pages",))
    assert page(anna, LongArticle).send(pages="7").status_code == 302
    found = LongArticle.objects.get()
    assert (found.pk, found.title, found.pages) == (row.pk, "Old", 7)
    shown = page(anna, LongArticle)
    assert shown.send(pages="8").status_code == 200
    assert "Long article with this Article ptr already exists" in shown.text
    assert LongArticle.objects.get().pages == 7


def test_another_error_of_a_raw_save_is_raised_as_it_is() -> None:
    row = LongArticle(pk=Article.objects.create(title="Old").pk, pages=None)
    insert_only(row, keys_of(row))
    with pytest.raises(IntegrityError, match="NOT NULL") as raised:
        row.save_base(raw=True)
    assert not isinstance(raised.value, KeyTaken)


def test_a_row_of_an_inline_overwrites_no_row(
    put: Callable[..., None], others: list[Any], anna: Client
) -> None:
    inline = type("Seals", (admin.TabularInline,), {"model": Seal})
    put(Versioned, inlines=[inline])
    row = Versioned.objects.create(title="Old")
    shown = page(anna, Versioned, row.pk)
    others.append(Seal(versioned=row, text="his"))
    assert shown.send({"seal-0-text": "typed"}, title="Anna's").status_code == 200
    assert "Seal with this Versioned already exists" in shown.text
    assert shown.fields["seal-0-text"] == ["typed"]
    assert (Versioned.objects.get().title, Seal.objects.count()) == ("Old", 0)
    assert shown.send().status_code == 302
    assert Seal.objects.get().text == "typed"


def test_only_the_first_save_of_the_row_itself_must_insert() -> None:
    row = Country(code="at", name="Austria")
    insert_only(row, keys_of(row))
    for other in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        other.code = "au"
        other.save()
        other.save()
    assert Country.objects.get().code == "au"
    row.save()
    row.save()
    assert Country.objects.count() == 2
    again = Country(code="at", name="typed")
    insert_only(again, keys_of(again))
    for _ in range(2):  # as a save that is tried again
        with pytest.raises(KeyTaken, match=r"edited\.Country has a row with this primary key"):
            again.save()
    assert Country.objects.get(code="at").name == "Austria"


def test_another_error_of_the_database_is_raised_as_it_is() -> None:
    row = Country(code="at", name=None)
    insert_only(row, keys_of(row))
    with pytest.raises(IntegrityError, match="NOT NULL") as raised:
        row.save()
    assert not isinstance(raised.value, KeyTaken)
