"""Locked views with middleware and decorators of Django, of django-reversion and of the site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory
from django.urls import ResolverMatch, path
from django.utils.decorators import decorator_from_middleware
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.cache import cache_page
from django.views.generic import View
from pytest_django import Settings
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from redlock_django import InvalidRedlock, LockResourceMixin, idempotent, lock_resource
from redlock_django.contrib.edit_locks import EditLockMixin
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, AddsContext, Configure, Urls, sender
from tests.contrib.edited.pages import OpenPage
from tests.views.kinds import KEY, KINDS, Rest, body, derived, locked

once = idempotent(anonymous_scope=lambda request, **_: "anyone")
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]


class ReplacesMatch(MiddlewareMixin):
    """A middleware that replaces `request.resolver_match`."""

    def process_view(self, request: HttpRequest, *_: object) -> None:
        request.resolver_match = ResolverMatch(lambda request: None, (), {})


@pytest.mark.parametrize(
    "kind", ["function", "as_view", "dispatch", "mixin", "REST handler", "rule"]
)
def test_a_view_keeps_its_transaction_when_a_middleware_replaces_its_match(
    urls: Urls, settings: Settings, memory: Configure, kind: str
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.ReplacesMatch"]
    memory(RULES=KINDS[kind].rules)
    body[:] = [lambda request: HttpResponse("atomic" if connection.in_atomic_block else "")]
    urls(KINDS[kind].make())
    assert Client().post("/7/").content == b"atomic"


@pytest.mark.django_db
def test_in_a_test_with_a_transaction_such_a_view_is_rolled_back(
    urls: Urls, settings: Settings
) -> None:
    @locked
    def fail(request: HttpRequest, pk: int) -> HttpResponse:
        Order.objects.create(total=1)
        raise PermissionDenied

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.ReplacesMatch"]
    urls(path("<int:pk>/", fail))
    assert Client().post("/7/").status_code == 403
    assert not Order.objects.exists()


def respond(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


async def arespond(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


@pytest.mark.usefixtures("lock_middleware", "plain")
@pytest.mark.parametrize("view", [respond, arespond])
def test_what_on_locked_returns_is_not_cached(urls: Urls, view: Any) -> None:
    cache.clear()

    def served(own: HttpResponse) -> Any:
        return cache_page(60)(lock_resource(KEY, on_locked=lambda request, error: own)(view))

    kept = HttpResponse("busy", headers={"Cache-Control": "max-age=1"})
    urls(path("own/<int:pk>/", served(HttpResponse("busy"))), path("kept/<int:pk>/", served(kept)))
    get = sender(iscoroutinefunction(view), "get")
    with held_elsewhere("order:7"):
        assert get("/own/7/")["Cache-Control"] == "no-store"
        assert get("/kept/7/")["Cache-Control"] == "max-age=1"
    assert get("/own/7/").content == b""


# Template responses, on a site whose middleware changes them.


class NotesRendered(AddsContext):
    """Notes whether the responses that it gets are rendered."""

    seen: ClassVar[list[bool]] = []

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        self.seen.append(response.is_rendered)
        return response


def page(request: HttpRequest, pk: int) -> TemplateResponse:
    template: Any = engines["django"].from_string("page {{ added }}")
    return TemplateResponse(request, template, {})


async def apage(request: HttpRequest, pk: int) -> TemplateResponse:
    return page(request, pk)


def rendered(request: HttpRequest, pk: int) -> HttpResponse:
    return page(request, pk).render()


class Page(LockResourceMixin, View):
    lock_key = KEY

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return page(request, pk)


@pytest.fixture
def post(plain: None, urls: Urls, settings: Settings) -> Callable[..., Any]:
    """Return a function that serves a view with these middleware, and sends a request to it."""

    def send(view: Any, *middleware: str) -> Any:
        settings.MIDDLEWARE = list(middleware)
        urls(path("<int:pk>/", view))
        return sender(iscoroutinefunction(view))("/7/", headers={"Idempotency-Key": "k"})

    return send


@pytest.mark.parametrize("view", [page, apage, Page.as_view()], ids=["sync", "async", "class"])
def test_a_response_that_is_rendered_too_early_for_its_middleware_is_refused(
    post: Callable[..., Any], view: Any
) -> None:
    """It was sent without what the middleware adds, and nothing said so."""
    message = r"\w+ returned a template response, which .*AddsContext.process_template_response"
    view_of_lock = view if hasattr(view, "view_class") else locked(view)
    answer = post(view_of_lock, LOCK_MIDDLEWARE, ADDS_CONTEXT)
    assert answer.content == b"page by the middleware"
    with pytest.raises(InvalidRedlock, match=f"{message}.*Add LockMiddleware"):
        post(view_of_lock, ADDS_CONTEXT)


@pytest.mark.parametrize("view", [page, apage])
@pytest.mark.parametrize("middleware", [[], [LOCK_MIDDLEWARE]])
def test_a_response_that_is_recorded_before_its_middleware_is_refused(
    post: Callable[..., Any], view: Any, middleware: list[str]
) -> None:
    refused = "page returned a template response, which .*AddsContext.process_template_response"
    refused += ".*recorded by @idempotent.*Return render"
    if view is apage and not middleware:
        refused = "apage is an async view.*Add 'redlock_django.middleware.LockMiddleware'"
    with pytest.raises(InvalidRedlock, match=refused):
        post(once(view), *middleware, ADDS_CONTEXT)
    assert view is apage or not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("decorate", [locked, once])
def test_a_view_may_render_its_response_itself(post: Callable[..., Any], decorate: Any) -> None:
    assert post(decorate(rendered), ADDS_CONTEXT).content == b"page "
    assert post(decorate(page)).content == b"page "


def test_a_view_that_is_called_without_middleware_renders_its_response() -> None:
    assert locked(page)(RequestFactory().post("/"), pk=7).content == b"page "


@pytest.mark.parametrize("decorate", [locked, once])
def test_a_decorator_below_the_lock_changes_the_response(
    post: Callable[..., Any], decorate: Any
) -> None:
    changed = decorator_from_middleware(AddsContext)(page)
    assert post(decorate(changed)).content == b"page by the middleware"


def test_a_response_of_rest_framework_is_rendered_before_its_middleware(
    post: Callable[..., Any],
) -> None:
    body[:] = [lambda request: Response({})]
    view = derived(Rest, renderer_classes=(JSONRenderer,), post=locked(Rest.post)).as_view()
    NotesRendered.seen.clear()
    answer = post(view, LOCK_MIDDLEWARE, f"{__name__}.NotesRendered")
    assert answer.content == b"{}"
    assert NotesRendered.seen == [True]


# django-reversion: its middleware where locks are refused, and what the error says instead.


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
    settings.MIDDLEWARE = ["reversion.middleware.RevisionMiddleware", LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", locked(make)))
    with pytest.raises(InvalidRedlock, match="may read data from before the lock") as refused:
        Client().post("/7/")
    assert "create_revision below @lock_resource" in str(refused.value)
    assert (Order.objects.count(), versions()) == (0, 0)


@pytest.mark.attack
@pytest.mark.usefixtures("lock_middleware")
def test_the_advice_of_the_error_keeps_lock_transaction_and_revision_in_order(
    versions: Callable[[], int], urls: Urls, happened: list[str]
) -> None:
    from reversion.views import create_revision

    urls(path("<int:pk>/", locked(create_revision()(make))))
    happened.clear()
    assert Client().post("/7/").status_code == 200
    assert happened == ["lock", "BEGIN", "COMMIT", "release"]
    assert (Order.objects.count(), versions()) == (1, 1)


def test_version_admin_with_edit_locks_keeps_versions_without_the_middleware(
    versions: Callable[[], int], urls: Urls
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
