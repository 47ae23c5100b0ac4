"""The kinds of views that can be locked: what each is, and who opens its transaction."""

# No `from __future__ import annotations`: django-ninja reads the annotations of its functions.
# ruff: noqa: I002

import itertools
from collections.abc import Callable
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, NamedTuple

import ninja
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from ninja.decorators import decorate_view
from rest_framework.request import Request
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import IdempotentMixin, LockResourceMixin, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.conftest import wrapping

KEY = "order:<int:pk>"
locked = lock_resource(KEY)
numbers = itertools.count()
body: list[Callable[[Any], Any]] = []
"""The work of the view, a single function: it gets the request and returns the response."""


def run(request: Any, pk: Any = None) -> Any:
    """Do what the test has put into `body`."""
    return body[0](request)


async def arun(request: Any) -> Any:
    """Do the same in the loop, if it is a coroutine function, or else in a thread."""
    work: Any = body[0]
    return await (work if iscoroutinefunction(work) else sync_to_async(run))(request)


def function(request: HttpRequest, pk: str) -> Any:
    return run(request)


async def afunction(request: HttpRequest, pk: str) -> Any:
    return await arun(request)


class Plain(View):
    def post(self, request: HttpRequest, pk: str) -> Any:
        return run(request)


class AsyncPlain(View):
    async def post(self, request: HttpRequest, pk: str) -> Any:
        return await arun(request)


class Mixed(LockResourceMixin, Plain):
    lock_key = KEY


class AsyncMixed(LockResourceMixin, AsyncPlain):
    lock_key = KEY


class Handler(View):
    @locked
    def post(self, request: HttpRequest, pk: str) -> Any:
        return run(request)


class DecoratedHandler(View):
    @method_decorator(locked)
    def post(self, request: HttpRequest, pk: str) -> Any:
        return run(request)


class AsyncHandler(View):
    @locked
    async def post(self, request: HttpRequest, pk: str) -> Any:
        return await arun(request)


class AsyncDecoratedHandler(View):
    @method_decorator(locked)
    async def post(self, request: HttpRequest, pk: str) -> Any:
        return await arun(request)


class BareRest(APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    @locked
    def post(self, request: Request, pk: str) -> Any:
        return run(request)


class Rest(LockAPIMixin, BareRest):
    pass


class Actions(LockAPIMixin, ViewSet):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    @locked
    def pay(self, request: Request, pk: str) -> Any:
        return run(request)


def of_class(view: Any, *decorators: Any) -> Any:
    """Return the view of a new class whose `dispatch` is decorated."""
    own: Any = type("Own", (view,), {})
    return method_decorator(decorators, name="dispatch")(own).as_view()


def operation(view: Any, decorator: Any = locked) -> Any:
    """Return the URLs of an operation of django-ninja."""
    own = FunctionType(view.__code__, view.__globals__)  # decorate_view marks the function itself
    api = ninja.NinjaAPI(urls_namespace=f"kinds-{next(numbers)}")
    api.post("/{pk}/")(decorator(update_wrapper(own, view)))
    return path("", api.urls)


class Kind(NamedTuple):
    """One kind of locked view.

    `make` returns its URL pattern. `inside` is whether Django opens ATOMIC_REQUESTS around its
    lock, `is_async` whether there is no transaction, `by_rule` whether the settings lock it,
    `alone` whether the site has no LockMiddleware, `renders_late` whether its response is rendered
    after its transaction.
    """

    make: Callable[[], Any]
    inside: bool = False
    is_async: bool = False
    by_rule: bool = False
    alone: bool = False
    renders_late: bool = False


def at(view: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: path("<str:pk>/", view(), name="pay")


KINDS: dict[str, Kind] = {
    "function": Kind(at(lambda: locked(function))),
    "function in a decorator": Kind(at(lambda: wrapping(locked(function)))),
    "function around a decorator": Kind(at(lambda: locked(wrapping(function)))),
    "partial": Kind(at(lambda: locked(partial(function)))),
    "as_view": Kind(at(lambda: locked(Plain.as_view()))),
    "dispatch": Kind(at(lambda: of_class(Plain, locked))),
    "dispatch, decorated": Kind(at(lambda: of_class(Plain, wrapping, locked))),
    "mixin": Kind(at(Mixed.as_view)),
    "rule": Kind(at(lambda: function), by_rule=True),
    "rule for a class": Kind(at(Plain.as_view), by_rule=True),
    "REST handler": Kind(at(Rest.as_view)),
    "REST action": Kind(at(lambda: Actions.as_view({"post": "pay"}))),
    "handler": Kind(at(Handler.as_view), inside=True),
    "handler, method_decorator": Kind(at(DecoratedHandler.as_view), inside=True),
    "REST handler without the mixin": Kind(at(BareRest.as_view), inside=True, renders_late=True),
    "function alone": Kind(at(lambda: locked(function)), alone=True),
    "mixin alone": Kind(at(Mixed.as_view), alone=True),
    "ninja": Kind(lambda: operation(function), inside=True),
    "ninja, decorate_view": Kind(lambda: operation(function, decorate_view(locked)), inside=True),
    "async function": Kind(at(lambda: locked(afunction)), is_async=True),
    "async as_view": Kind(at(lambda: locked(AsyncPlain.as_view())), is_async=True),
    "async dispatch": Kind(at(lambda: of_class(AsyncPlain, locked)), is_async=True),
    "async mixin": Kind(at(AsyncMixed.as_view), is_async=True),
    "async handler": Kind(at(AsyncHandler.as_view), is_async=True),
    "async handler, method_decorator": Kind(at(AsyncDecoratedHandler.as_view), is_async=True),
    "async function alone": Kind(at(lambda: locked(afunction)), is_async=True, alone=True),
    "async rule": Kind(at(lambda: afunction), is_async=True, by_rule=True),
    "async ninja": Kind(lambda: operation(afunction), is_async=True),
    "async ninja, decorate_view": Kind(
        lambda: operation(afunction, decorate_view(locked)), is_async=True
    ),
}


def recorded(**options: Any) -> dict[str, Kind]:
    """Return the kinds of views with `@idempotent(**options)`; most lock their resource, too."""
    once: Callable[[Any], Any] = idempotent(**options)

    def above_lock(view: Any) -> Any:
        return once(locked(view))

    def mixed(view: Any) -> Any:
        own: Any = type("Own", (IdempotentMixin, view), {"idempotent_options": options})
        return own.as_view()

    class RecordedHandler(View):
        @method_decorator([once, locked])
        def post(self, request: HttpRequest, pk: str) -> Any:
            return run(request)

    class AsyncRecordedHandler(View):
        @once
        async def post(self, request: HttpRequest, pk: str) -> Any:
            return await arun(request)

    class RecordedRest(LockAPIMixin, APIView):  # type: ignore[misc]
        @once
        @locked
        def post(self, request: Request, pk: str) -> Any:
            return run(request)

    return {
        "function": Kind(at(lambda: once(function))),
        "above a lock": Kind(at(lambda: once(locked(function)))),
        "a decorator between": Kind(at(lambda: once(wrapping(locked(function))))),
        "as_view": Kind(at(lambda: once(locked(Plain.as_view())))),
        "as_view of a mixin": Kind(at(lambda: once(Mixed.as_view()))),
        "dispatch": Kind(at(lambda: of_class(Plain, once, locked))),
        "dispatch of a mixin": Kind(at(lambda: of_class(Mixed, once))),
        "mixins": Kind(at(lambda: mixed(Mixed))),
        "REST handler": Kind(at(RecordedRest.as_view)),
        "handler": Kind(at(RecordedHandler.as_view), inside=True),
        "ninja": Kind(lambda: operation(function, once), inside=True),
        "ninja, above a lock": Kind(lambda: operation(function, above_lock), inside=True),
        "async function": Kind(at(lambda: once(afunction)), is_async=True),
        "async, above a lock": Kind(at(lambda: once(locked(afunction))), is_async=True),
        "async as_view": Kind(at(lambda: once(locked(AsyncPlain.as_view()))), is_async=True),
        "async dispatch": Kind(at(lambda: of_class(AsyncPlain, once, locked)), is_async=True),
        "async mixins": Kind(at(lambda: mixed(AsyncMixed)), is_async=True),
        "async handler": Kind(at(AsyncRecordedHandler.as_view), is_async=True),
        "async ninja": Kind(lambda: operation(afunction, once), is_async=True),
    }


RECORDED = recorded()
WITHOUT_LOCK = ("function", "ninja", "async function", "async handler", "async ninja")
