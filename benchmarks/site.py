"""A site of a few views: bare, locked, and under django-redis's `cache.lock`.

All do the same minimal work, so that the differences are those of the lock. gunicorn serves
`application()`, on the masters in the environment variable.
"""

from __future__ import annotations

import json
import os
import time
from itertools import count
from typing import Any

import django
from django.conf import settings
from django.core.cache import cache
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import override_settings
from django.urls import path

from benchmarks.peers.ours import redlock
from benchmarks.worker.contender import TTL, Contender
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
MASTERS = "BENCH_MASTERS"
"""The environment variable with the masters, as JSON."""

VIEWS = {
    # what it is called in the results: where it is served
    "bare": "/with/bare/",
    "bare, no LockMiddleware": "/without/bare/",
    "locked": "/with/locked/",
    "cache.lock": "/with/cached/",
}
"""`/with/` is the site with LockMiddleware, `/without/` without it."""


def configure(masters: list[Any], **more: Any) -> None:
    """Configure Django for a site on these masters."""
    os.environ[MASTERS] = json.dumps(masters)
    settings.configure(
        SECRET_KEY="insecure: for a benchmark only",
        ALLOWED_HOSTS=["127.0.0.1", "testserver"],
        ROOT_URLCONF=__name__,
        REDLOCK=redlock(masters),
        **{"INSTALLED_APPS": ["redlock_django"], **more},
    )
    django.setup()


class Witness(Contender):
    """Makes an intruder look at every n-th order while it is paid.

    `prefix` precedes a resource in the key of its lock, which is on `masters_used` masters.
    """

    def __init__(self, prefix: str = "redlock:lock:", masters_used: int | None = None) -> None:
        self.prefix, self.masters_used = prefix, masters_used
        self._turns = count()
        self.looks = self.overlaps = 0

    def see(self, resource: str) -> None:
        """Check from outside, now and then, that a resource which is held is refused."""
        if next(self._turns) % LOOK_EVERY:
            return
        with Intruder(json.loads(os.environ[MASTERS]), self) as intruder:
            intruder.look(resource)
            self.looks += intruder.looks
            self.overlaps += intruder.overlaps


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


def application(masters: list[Any] | None = None) -> Any:
    """Return the WSGI application of both sites: `/with/...` and `/without/...` LockMiddleware."""
    masters = masters or json.loads(os.environ[MASTERS])
    host, port = masters[0]
    store = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://{host}:{port}/0"}
    configure(masters, MIDDLEWARE=[*MIDDLEWARE, OURS], CACHES={"default": store})
    sites = {"with": WSGIHandler()}
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        sites["without"] = WSGIHandler()

    def respond(environ: dict[str, Any], start_response: Any) -> Any:
        _, first, rest = environ["PATH_INFO"].split("/", 2)
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", f"/{rest}"
        return sites[first](environ, start_response)

    return respond
