"""Forms of unusual fields: a primary key to edit, no field at all, a row without a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from redlock_django import EditLockMixin
from tests.edit_locks.conftest import opened
from tests.edit_locks.models import Country

pytestmark = pytest.mark.django_db
Base: Any = admin.ModelAdmin


def test_a_new_primary_key_overwrites_no_other_row(
    register: Callable[..., None], anna: Client
) -> None:
    register(type("CountryAdmin", (EditLockMixin, Base), {}), Country)
    Country.objects.create(code="at", name="Austria")
    Country.objects.create(code="au", name="Australia")
    hers = opened(anna, "/admin/edited/country/at/change/", "country_form")
    assert hers.send(code="au", name="typed").status_code == 200
    assert "Country with this Code already exists" in hers.text
    assert hers.fields["name"] == ["typed"]
    assert Country.objects.get(code="au").name == "Australia"
    assert hers.send(code="xy").status_code == 302
    assert Country.objects.count() == 3, "as in Django: a new row"
