"""django-reversion: its middleware where locks are refused, and what the check says instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings
from reversion.middleware import RevisionMiddleware

from redlock_django import lock_resource
from redlock_django.checks import views
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]
MIDDLEWARE = "reversion.middleware.RevisionMiddleware"


@pytest.fixture
def versions(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Install django-reversion for orders, and return a function that counts their versions."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
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


def warnings() -> list[str]:
    found = run_checks(tags=["redlock"])
    return [str(one.hint) for one in found if one.id == "redlock_django.W017"]


def test_where_locks_are_refused_the_check_and_the_error_say_what_to_write(
    versions: Callable[[], int], settings: Settings, urls: Callable[..., None]
) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE, LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", lock_resource("order:<int:pk>")(make)))
    (warning,) = warnings()
    assert "create_revision below @lock_resource" in warning
    with pytest.raises(Exception, match="may read data from before the lock"):
        Client().post("/7/")
    assert (Order.objects.count(), versions()) == (0, 0)


class Archived(RevisionMiddleware):  # type: ignore[misc]
    using = "archive"


class WithoutTransaction(RevisionMiddleware):  # type: ignore[misc]
    atomic = False


@pytest.mark.parametrize(
    ("middleware", "named"),
    [("Archived", "'archive'"), ("WithoutTransaction", None)],
)
def test_only_the_database_of_the_revisions_counts(
    versions: Callable[[], int],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    middleware: str,
    named: str | None,
) -> None:
    archive = {**connections.settings["default"]}
    monkeypatch.setitem(connections.settings, "archive", archive)
    monkeypatch.setattr(views, "sees_commits", lambda connection, _: connection.alias == "default")
    settings.MIDDLEWARE = [MIDDLEWARE, LOCK_MIDDLEWARE]
    assert warnings() == []
    settings.MIDDLEWARE = [f"{__name__}.{middleware}", LOCK_MIDDLEWARE]
    found = [one.msg for one in run_checks(tags=["redlock"]) if one.id == "redlock_django.W017"]
    assert [str(named) in message for message in found] == ([True] if named else [])
    with suppress(AttributeError):  # no connection of this thread was made
        del connections["archive"]


def test_the_advice_of_the_check_keeps_lock_transaction_and_revision_in_order(
    versions: Callable[[], int],
    settings: Settings,
    urls: Callable[..., None],
    happened: list[str],
) -> None:
    from reversion.views import create_revision

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    locked: Any = lock_resource("order:<int:pk>")(create_revision()(make))
    urls(path("<int:pk>/", locked))
    assert warnings() == []
    happened.clear()
    assert Client().post("/7/").status_code == 200
    assert happened == ["lock", "BEGIN", "COMMIT", "release"]
    assert (Order.objects.count(), versions()) == (1, 1)
