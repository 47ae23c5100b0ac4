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


class BareRest(APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def post(self, request: Request, pk: str) -> Any:
        return run(request)


class Rest(LockAPIMixin, BareRest):
    pass


class Actions(LockAPIMixin, ViewSet):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def pay(self, request: Request, pk: str) -> Any:
        return run(request)


def derived(base: type[Any], *decorators: Any, **attributes: Any) -> Any:
    """Return a new class, whose `dispatch` is decorated if decorators are given."""
    owner = type("Pay", (base,), attributes)
    return method_decorator(decorators, name="dispatch")(owner) if decorators else owner


def of_class(view: Any, *decorators: Any) -> Any:
    """Return the view of a new class whose `dispatch` is decorated."""
    return derived(view, *decorators).as_view()


def operation(view: Any, decorator: Any) -> Any:
    """Return the URLs of an operation of django-ninja."""
    own = FunctionType(view.__code__, view.__globals__)  # decorate_view marks the function itself
    api = ninja.NinjaAPI(urls_namespace=f"kinds-{next(numbers)}")
    api.post("/{pk}/")(decorator(update_wrapper(own, view)))
    return path("", api.urls)


class Kind(NamedTuple):
    """One kind of locked view.

    `make` returns its URL pattern. `inside` is whether Django opens ATOMIC_REQUESTS around its
    lock, `is_async` whether there is no transaction, `rules` what locks it in the settings, `alone`
    whether the site has no LockMiddleware, `renders_late` whether its response is rendered after
    its transaction.
    """

    make: Callable[[], Any]
    inside: bool = False
    is_async: bool = False
    rules: tuple[dict[str, Any], ...] = ()
    alone: bool = False
    renders_late: bool = False


def at(view: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: path("<str:pk>/", view(), name="pay")


def kinds(**options: Any) -> dict[str, Kind]:
    """Return the kinds of views, each locked with these options."""
    locked = lock_resource(KEY, **options)
    rules = ({"view": "pay", "key": KEY, **options},)

    def mixed(view: Any) -> Callable[[], Any]:
        named = {f"lock_{name}": value for name, value in options.items()}
        return at(derived(view, **named).as_view)

    def handler(view: Any, decorate: Any = locked) -> Callable[[], Any]:
        return at(derived(view, post=decorate(view.post)).as_view)

    by_method = method_decorator(locked)
    actions = derived(Actions, pay=locked(Actions.pay))
    return {
        "function": Kind(at(lambda: locked(function))),
        "function in a decorator": Kind(at(lambda: wrapping(locked(function)))),
        "function around a decorator": Kind(at(lambda: locked(wrapping(function)))),
        "partial": Kind(at(lambda: locked(partial(function)))),
        "as_view": Kind(at(lambda: locked(Plain.as_view()))),
        "dispatch": Kind(at(lambda: of_class(Plain, locked))),
        "dispatch, decorated": Kind(at(lambda: of_class(Plain, wrapping, locked))),
        "mixin": Kind(mixed(Mixed)),
        "rule": Kind(at(lambda: function), rules=rules),
        "rule for a class": Kind(at(Plain.as_view), rules=rules),
        "REST handler": Kind(handler(Rest)),
        "REST action": Kind(at(lambda: actions.as_view({"post": "pay"}))),
        "handler": Kind(handler(Plain), inside=True),
        "handler, method_decorator": Kind(handler(Plain, by_method), inside=True),
        "REST handler without the mixin": Kind(handler(BareRest), inside=True, renders_late=True),
        "function alone": Kind(at(lambda: locked(function)), alone=True),
        "mixin alone": Kind(mixed(Mixed), alone=True),
        "ninja": Kind(lambda: operation(function, locked), inside=True),
        "ninja, decorate_view": Kind(
            lambda: operation(function, decorate_view(locked)), inside=True
        ),
        "async function": Kind(at(lambda: locked(afunction)), is_async=True),
        "async as_view": Kind(at(lambda: locked(AsyncPlain.as_view())), is_async=True),
        "async dispatch": Kind(at(lambda: of_class(AsyncPlain, locked)), is_async=True),
        "async mixin": Kind(mixed(AsyncMixed), is_async=True),
        "async handler": Kind(handler(AsyncPlain), is_async=True),
        "async handler, method_decorator": Kind(handler(AsyncPlain, by_method), is_async=True),
        "async function alone": Kind(at(lambda: locked(afunction)), is_async=True, alone=True),
        "async rule": Kind(at(lambda: afunction), is_async=True, rules=rules),
        "async rule for a class": Kind(at(AsyncPlain.as_view), is_async=True, rules=rules),
        "async ninja": Kind(lambda: operation(afunction, locked), is_async=True),
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

    handler = derived(Plain, post=method_decorator([once, locked])(Plain.post))
    async_handler = derived(AsyncPlain, post=once(AsyncPlain.post))

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
        "handler": Kind(at(handler.as_view), inside=True),
        "ninja": Kind(lambda: operation(function, once), inside=True),
        "ninja, above a lock": Kind(lambda: operation(function, above_lock), inside=True),
        "async function": Kind(at(lambda: once(afunction)), is_async=True),
        "async, above a lock": Kind(at(lambda: once(locked(afunction))), is_async=True),
        "async as_view": Kind(at(lambda: once(locked(AsyncPlain.as_view()))), is_async=True),
        "async dispatch": Kind(at(lambda: of_class(AsyncPlain, once, locked)), is_async=True),
        "async mixins": Kind(at(lambda: mixed(AsyncMixed)), is_async=True),
        "async handler": Kind(at(async_handler.as_view), is_async=True),
        "async ninja": Kind(lambda: operation(afunction, once), is_async=True),
    }


KINDS = kinds()
RECORDED = recorded()
WITHOUT_LOCK = ("function", "ninja", "async function", "async handler", "async ninja")
