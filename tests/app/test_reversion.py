"""django-reversion: its middleware where locks are refused, and what the error says instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from redlock_django import lock_resource
from redlock_django.contrib.edit_locks import EditLockMixin
from redlock_django.exceptions import InvalidRedlock
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, Urls
from tests.contrib.edited.pages import OpenPage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]
MIDDLEWARE = "reversion.middleware.RevisionMiddleware"


@pytest.fixture
def versions(settings: Settings, plain: None) -> Iterator[Callable[[], int]]:
    """Install django-reversion for orders, and return a function that counts their versions."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "reversion"]
    import reversion
    from reversion.models import Revision, Version

    reversion.register(Order)
    for model in (Revision, Version):
        with connection.schema_editor() as editor:
            editor.create_model(model)
    yield lambda: int(Version.objects.get_for_model(Order).count())
    for model in (Version, Revision):
        with connection.schema_editor() as editor:
            editor.delete_model(model)
    reversion.unregister(Order)


def make(request: HttpRequest, pk: int) -> HttpResponse:
    Order.objects.create(number=f"A-{pk}", total=1)
    return HttpResponse("done")


@pytest.mark.attack
def test_where_locks_are_refused_the_error_says_what_to_write(
    versions: Callable[[], int], settings: Settings, urls: Urls
) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE, LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", lock_resource("order:<int:pk>")(make)))
    with pytest.raises(InvalidRedlock, match="may read data from before the lock") as refused:
        Client().post("/7/")
    assert "create_revision below @lock_resource" in str(refused.value)
    assert (Order.objects.count(), versions()) == (0, 0)


@pytest.mark.attack
def test_the_advice_of_the_error_keeps_lock_transaction_and_revision_in_order(
    versions: Callable[[], int], settings: Settings, urls: Urls, happened: list[str]
) -> None:
    from reversion.views import create_revision

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    locked: Any = lock_resource("order:<int:pk>")(create_revision()(make))
    urls(path("<int:pk>/", locked))
    happened.clear()
    assert Client().post("/7/").status_code == 200
    assert happened == ["lock", "BEGIN", "COMMIT", "release"]
    assert (Order.objects.count(), versions()) == (1, 1)


def test_version_admin_with_edit_locks_keeps_versions_without_the_middleware(
    versions: Callable[[], int], settings: Settings, urls: Urls
) -> None:
    from reversion.admin import VersionAdmin

    site = AdminSite()
    site.register(
        Order, type("VersionedAdmin", (EditLockMixin, VersionAdmin), {"fields": ["total"]})
    )
    urls(path("admin/", site.urls))
    order = Order.objects.create(number="A-1", total=1)
    clients = [Client(), Client()]
    for client in clients:
        client.force_login(User.objects.create_superuser(f"user{id(client)}"))
    hers, his = (OpenPage(client, f"/admin/shop/order/{order.pk}/change/") for client in clients)
    assert his.send(total="2").status_code == 302
    assert hers.send(total="3").status_code == 200
    assert (Order.objects.get().total, versions()) == (2, 1)
    assert hers.send(total="3").status_code == 302
    assert (Order.objects.get().total, versions()) == (3, 2)
