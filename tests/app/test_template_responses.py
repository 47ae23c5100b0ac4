"""Template responses of locked views, on a site whose middleware changes them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import decorator_from_middleware
from django.views.generic import View
from pytest_django import Settings
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, AddsContext, Urls

locked = lock_resource("order:7")
once = idempotent(anonymous_scope=lambda request, **_: "anyone")
KEY = {"Idempotency-Key": "k"}
pytestmark = pytest.mark.django_db(transaction=True)


class NotesRendered(AddsContext):
    """Notes whether the responses that it gets are rendered."""

    seen: ClassVar[list[bool]] = []

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        self.seen.append(response.is_rendered)
        return response


def page(request: HttpRequest) -> TemplateResponse:
    template: Any = engines["django"].from_string("page {{ added }}")
    return TemplateResponse(request, template, {})


async def apage(request: HttpRequest) -> TemplateResponse:
    return page(request)


def rendered(request: HttpRequest) -> HttpResponse:
    return page(request).render()


class Page(LockResourceMixin, View):
    lock_key = "order:7"

    def post(self, request: HttpRequest) -> HttpResponse:
        return page(request)


@pytest.fixture(autouse=True)
def _site(memory: None, settings: Settings, plain: None) -> None:
    settings.MIDDLEWARE = [ADDS_CONTEXT]


def post(urls: Urls, view: Any, *, is_async: bool = False) -> Any:
    urls(path("", view))
    send: Any = async_to_sync(AsyncClient().post) if is_async else Client().post
    return send("/", headers=KEY)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("has_middleware", [False, True])
def test_a_response_that_is_rendered_too_early_for_its_middleware_is_refused(
    urls: Urls, settings: Settings, is_async: bool, has_middleware: bool
) -> None:
    """It was sent without what the middleware adds, and nothing said so."""
    view = apage if is_async else page
    message = "page returned a template response, which .*AddsContext.process_template_response"
    if has_middleware:
        settings.MIDDLEWARE = [LOCK_MIDDLEWARE, *settings.MIDDLEWARE]
        answer = post(urls, locked(view), is_async=is_async)
        assert answer.content == b"page by the middleware"
    else:
        with pytest.raises(InvalidRedlock, match=f"{message}.*Add LockMiddleware"):
            post(urls, locked(view), is_async=is_async)
    refused = f"{message}.*recorded by @idempotent.*Return render"
    if is_async and not has_middleware:
        refused = "apage is an async view.*Add 'redlock_django.middleware.LockMiddleware'"
    with pytest.raises(InvalidRedlock, match=refused):
        post(urls, once(view), is_async=is_async)


def test_the_refusal_of_a_sync_view_leaves_no_record(urls: Urls) -> None:
    with pytest.raises(InvalidRedlock, match="returned a template response"):
        post(urls, once(page))
    assert not IdempotencyRecord.objects.exists()


def test_a_class_is_refused_alike(urls: Urls, settings: Settings) -> None:
    with pytest.raises(InvalidRedlock, match="returned a template response"):
        post(urls, Page.as_view())
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, *settings.MIDDLEWARE]
    assert post(urls, Page.as_view()).content == b"page by the middleware"


@pytest.mark.parametrize("decorate", [locked, once])
def test_a_view_may_render_its_response_itself(
    urls: Urls, settings: Settings, decorate: Any
) -> None:
    assert post(urls, decorate(rendered)).content == b"page "
    settings.MIDDLEWARE = []
    assert post(urls, decorate(page)).content == b"page "


def test_a_view_that_is_called_without_middleware_renders_its_response() -> None:
    assert locked(page)(RequestFactory().post("/")).content == b"page "


@pytest.mark.parametrize("decorate", [locked, once])
def test_a_decorator_below_the_lock_changes_the_response(
    urls: Urls, settings: Settings, decorate: Any
) -> None:
    settings.MIDDLEWARE = []
    changed = decorator_from_middleware(AddsContext)(page)
    assert post(urls, decorate(changed)).content == b"page by the middleware"


def test_a_response_of_rest_framework_is_rendered_before_its_middleware(
    urls: Urls, settings: Settings
) -> None:
    class Api(LockAPIMixin, APIView):  # type: ignore[misc]
        authentication_classes = ()
        renderer_classes = (JSONRenderer,)

        @locked
        def post(self, request: Request) -> Response:
            return Response({})

    NotesRendered.seen.clear()
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.NotesRendered"]
    assert post(urls, Api.as_view()).content == b"{}"
    assert NotesRendered.seen == [True]
