"""A site of a few views: a payment without a lock, with one, and POSTs with an idempotency key.

All do the same minimal work, so that the differences are those of the lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from benchmarks.contenders import Place

# What `startproject` gives, but for sessions, users and messages, which would ask a database.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "redlock_django.middleware.LockMiddleware",
]
MASTERS = "BENCHMARK_MASTERS"
"""The environment variable of a server with the addresses of the masters, as JSON."""

urlpatterns: list[Any] = []


def configure(place: Place) -> None:
    """Configure Django for a site whose locks are at this place."""
    if "backends.mysql" in str(place.settings):
        import pymysql

        pymysql.install_as_MySQLdb()
    settings.configure(
        SECRET_KEY="insecure: for measurements only",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=MIDDLEWARE,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "redlock_django"],
        USE_TZ=True,
        **place.settings,
    )
    django.setup()


def section(masters: Any, **more: Any) -> dict[str, Any]:
    """Return the settings of Django for locks on these masters, which are trusted at once."""
    urls = [f"redis://{host}:{port}/0" for host, port in masters]
    return {"REDLOCK": {"default": {"MASTERS": urls, "RESTART_DELAY": 0, **more}}}


def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay an order."""
    return JsonResponse({"paid": pk})


async def apay(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay an order."""
    return JsonResponse({"paid": pk})


_numbers = count(1)


def post(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a payment: one row."""
    from django.contrib.auth.models import Group

    Group.objects.create(name=f"payment {os.getpid()}-{next(_numbers)}")
    return JsonResponse({"paid": 1}, status=201)


def post_with_own_key(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a payment and a row with a unique key: what a site writes without `@idempotent`."""
    from django.contrib.auth.models import User

    try:
        User.objects.create(username=request.headers["Idempotency-Key"])
    except IntegrityError:
        return HttpResponse(status=409)
    return post(request, pk)


def posts() -> dict[str, Callable[..., HttpResponse]]:
    """Return the views of POSTs."""
    from redlock_django import idempotent

    views = {"bare": post, "idempotent": idempotent(post), "own-key": post_with_own_key}
    return {name: csrf_exempt(view) for name, view in views.items()}


class Requests:
    """The requests of one process, through the middleware and the URLs, without a server."""

    def __init__(self, views: dict[str, Callable[..., Any]]) -> None:
        urlpatterns[:] = [path(f"{name}/<int:pk>/", view) for name, view in views.items()]
        self._handler = WSGIHandler()
        self._factory = RequestFactory()

    def get(self, view: str, pk: int) -> None:
        """Request a view. Raises RuntimeError for any status but 200."""
        answer = self._handler.get_response(self._factory.get(f"/{view}/{pk}/"))
        if answer.status_code != 200:
            raise RuntimeError(f"{view} was answered {answer.status_code}")

    def post(self, view: str, key: str, *, replayed: bool = False) -> None:
        """POST with an idempotency key. Raises RuntimeError for any status but 201."""
        from django.contrib.auth.models import User

        headers = {"Idempotency-Key": key}
        request = self._factory.post(f"/{view}/1/", {}, "application/json", headers=headers)
        request.user = User(pk=1)
        answer = self._handler.get_response(request)
        if answer.status_code != 201 or (answer.get("Idempotent-Replayed") == "true") != replayed:
            raise RuntimeError(f"{view} was answered {answer.status_code}, {answer.headers}")


def served(kind: Any, ours: type[Any], redis_py: type[Any], view: Any) -> Any:
    """Return the application of a server, with a bare view and two locked ones."""
    masters = tuple(tuple(address) for address in json.loads(os.environ[MASTERS]))
    place = Place(section(masters), masters)
    configure(place)
    views = {"bare": view, "ours": ours(place).view(view), "redis-py": redis_py(place).view(view)}
    urlpatterns[:] = [path(f"{name}/<int:pk>/", each) for name, each in views.items()]
    return kind()


def application() -> Any:
    """Return the application for gunicorn."""
    from benchmarks.contenders import ours, peers

    return served(WSGIHandler, ours.Threads, peers.RedisPy, pay)


def asgi_application() -> Any:
    """Return the application for uvicorn."""
    from benchmarks.contenders import ours, peers

    return served(ASGIHandler, ours.Tasks, peers.AsyncRedisPy, apay)
