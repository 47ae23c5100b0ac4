"""The views. All do the same minimal work, so that the differences are those of the lock."""

from __future__ import annotations

import json
import os
import time
from itertools import count

import django
from django.conf import settings
from django.core.cache import cache
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import override_settings
from django.urls import path

from benchmarks.peers.ours import redlock
from benchmarks.worker.contender import TTL
from benchmarks.worker.witness import LOOK_EVERY, Intruder
from redlock_django import lock_resource

# What `startproject` gives, but for sessions, users and messages, which would ask a database.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
OURS = "redlock_django.middleware.LockMiddleware"

VIEWS = {
    # what it is called in the results: where it is served
    "bare": "/with/bare/",
    "bare, no LockMiddleware": "/without/bare/",
    "locked": "/with/locked/",
    "cache.lock": "/with/cached/",
}
"""`/with/` is the site with LockMiddleware, `/without/` without it."""


def configure(masters: list[tuple[str, int]]) -> None:
    """Configure Django for this site."""
    host, port = masters[0]
    settings.configure(
        SECRET_KEY="insecure: for a benchmark only",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["redlock_django"],
        MIDDLEWARE=[*MIDDLEWARE, OURS],
        CACHES={
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"redis://{host}:{port}/0",
            }
        },
        REDLOCK=redlock(masters),
    )
    django.setup()


class Witness:
    """Makes an intruder look at every n-th order while it is paid.

    `prefix` precedes a resource in the key of its lock, which is on `masters_used` masters, None
    for all.
    """

    def __init__(self, prefix: str = "redlock:lock:", masters_used: int | None = None) -> None:
        self._prefix, self.masters_used = prefix, masters_used
        self._turns = count()
        self.looks = self.overlaps = 0
        self._masters: list[tuple[str, int]] = json.loads(os.environ.get("BENCH_MASTERS", "[]"))

    def masters(self, masters: list[tuple[str, int]]) -> None:
        """Set the masters."""
        self._masters = masters

    def see(self, resource: str) -> None:
        """Check from outside, now and then, that a resource which is held is refused."""
        if next(self._turns) % LOOK_EVERY:
            return
        with Intruder(self._masters, self) as intruder:
            intruder.look(resource)
            self.looks += intruder.looks
            self.overlaps += intruder.overlaps

    def key(self, resource: str) -> str:
        """Return the key of its lock on a master."""
        return f"{self._prefix}{resource}"


witness, cache_witness = Witness(), Witness(":1:", masters_used=1)  # the prefix of Django's caches


def bare(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay without a lock."""
    return JsonResponse({"paid": pk})


@lock_resource("order:<int:pk>")
def locked(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay while holding a lock on all masters."""
    witness.see(f"order:{pk}")
    return JsonResponse({"paid": pk})


def cached(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay while holding django-redis's lock on one master."""
    with cache.lock(f"order:{pk}", timeout=TTL):  # type: ignore[attr-defined]
        cache_witness.see(f"order:{pk}")
        return JsonResponse({"paid": pk})


def counts() -> dict[str, int]:
    """Return the counts of the intruders."""
    return {
        "looks": witness.looks + cache_witness.looks,
        "overlaps": witness.overlaps + cache_witness.overlaps,
    }


def seen(request: HttpRequest) -> HttpResponse:
    """Return the counts of the intruders, and the processor time of this process in seconds."""
    return JsonResponse({**counts(), "cpu": time.process_time()})


urlpatterns = [
    path("bare/<int:pk>/", bare),
    path("locked/<int:pk>/", locked),
    path("cached/<int:pk>/", cached),
    path("seen/", seen),
]


class Sites:
    """The WSGI application: `/with/...` and `/without/...` LockMiddleware."""

    def __init__(self) -> None:
        self._with = WSGIHandler()
        with override_settings(MIDDLEWARE=MIDDLEWARE):
            self._without = WSGIHandler()

    def __call__(self, environ, start_response):  # type: ignore[no-untyped-def]
        """Respond with one of the two sites."""
        _, first, rest = environ["PATH_INFO"].split("/", 2)
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", f"/{rest}"
        return (self._with if first == "with" else self._without)(environ, start_response)
