"""A site without the app in INSTALLED_APPS gets an error at its start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.views.generic import View
from pytest_django import Settings

from redlock_django import LockResourceMixin, idempotent, lock, lock_resource
from redlock_django.conf.settings import check_installed
from redlock_django.exceptions import InvalidRedlock
from redlock_django.middleware import LockMiddleware
from tests.app.conftest import MEMORY

MISSING = "'redlock_django' is missing in INSTALLED_APPS.* Add it, and run 'manage.py migrate'"


@pytest.fixture(autouse=True)
def _not_installed(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    settings.INSTALLED_APPS = [a for a in settings.INSTALLED_APPS if a != "redlock_django"]
    check_installed.cache_clear()


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def test_the_middleware_is_refused_when_the_server_starts() -> None:
    with pytest.raises(InvalidRedlock, match=MISSING):
        LockMiddleware(view)


@pytest.mark.parametrize("decorator", [lock_resource("order"), idempotent])
def test_a_decorated_view_is_refused_where_its_module_is_imported(
    decorator: Callable[[Any], Callable[[HttpRequest], HttpResponse]],
) -> None:
    with pytest.raises(InvalidRedlock, match=MISSING):
        decorator(view)


@pytest.mark.parametrize("decorator", [lock_resource("order"), idempotent])
def test_a_view_that_is_imported_before_django_has_started_is_refused_at_its_first_request(
    decorator: Callable[[Any], Callable[[HttpRequest], HttpResponse]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as starting:
        starting.setattr(apps, "ready", False)
        decorated = decorator(view)
    with pytest.raises(InvalidRedlock, match=MISSING):
        decorated(RequestFactory().post("/"))


class Templated(LockResourceMixin, View):
    lock_key = "order"


class Computed(LockResourceMixin, View):
    def get_lock_key(self) -> str:
        return "order"


@pytest.mark.parametrize("mixed", [Templated, Computed])
def test_a_view_with_the_mixin_is_refused_in_the_urlconf(mixed: type[View]) -> None:
    with pytest.raises(InvalidRedlock, match=MISSING):
        mixed.as_view()


def test_a_script_may_lock_without_the_app() -> None:
    with lock("order:1") as held:
        assert held.locked
