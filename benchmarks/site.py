"""A site of a few views, sync and async: bare, locked in several ways, and under redis-py's Lock.

All do the same minimal work, so that the differences are those of the lock. gunicorn serves
`application()`, and uvicorn `asgi_application()`, on the masters in the environment variable.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test.utils import override_settings
from django.urls import path
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.peers.ours import redlock
from benchmarks.worker.contender import TTL, Contender
from benchmarks.worker.witness import LOOK_EVERY, Intruder
from redlock_django import lock, lock_resource

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

KEY = "order:<int:pk>"
VIEWS = {
    # what it is called in the results: where it is served
    "bare": "/with/{}bare/",
    "bare, no LockMiddleware": "/without/{}bare/",
    "@lock_resource": "/with/{}decorated/",
    "a rule": "/with/{}ruled/",
    "with lock()": "/with/{}block/",
    "redis-py's Lock": "/with/{}redis/",
}
"""`/with/` is the site with LockMiddleware, `/without/` without it."""

SYNC, ASYNC = "", "async/"
"""The kinds of views: what `{}` is in their paths."""


def configure(masters: list[Any], **more: Any) -> None:
    """Configure Django for a site on these masters."""
    os.environ[MASTERS] = json.dumps(masters)
    settings.configure(
        SECRET_KEY="insecure: for a benchmark only",
        ALLOWED_HOSTS=["127.0.0.1", "testserver"],
        ROOT_URLCONF=__name__,
        **{"INSTALLED_APPS": ["redlock_django"], "REDLOCK": redlock(masters), **more},
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


witness, redis_witness = Witness(), Witness("", masters_used=1)


@cache
def redis_py(client: Any) -> Any:
    """Return the client of redis-py for the first master, of this class; all requests share it."""
    host, port = json.loads(os.environ[MASTERS])[0]
    return client(host=host, port=port)


def bare(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay without a lock."""
    return JsonResponse({"paid": pk})


def ruled(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay while holding a lock on all masters, by a rule."""
    witness.see(f"order:{pk}")
    return JsonResponse({"paid": pk})


def block(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay in a `with` block of a lock on all masters."""
    with lock(f"order:{pk}"):
        witness.see(f"order:{pk}")
        return JsonResponse({"paid": pk})


def redis(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay while holding redis-py's Lock on one master."""
    with redis_py(Redis).lock(f"order:{pk}", timeout=TTL):
        redis_witness.see(f"order:{pk}")
        return JsonResponse({"paid": pk})


async def abare(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay as `bare` does."""
    return JsonResponse({"paid": pk})


async def aruled(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay as `ruled` does."""
    witness.see(f"order:{pk}")
    return JsonResponse({"paid": pk})


async def ablock(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay as `block` does."""
    async with lock(f"order:{pk}"):
        witness.see(f"order:{pk}")
        return JsonResponse({"paid": pk})


async def aredis(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay as `redis` does, under its asyncio Lock."""
    async with redis_py(AsyncRedis).lock(f"order:{pk}", timeout=TTL):
        redis_witness.see(f"order:{pk}")
        return JsonResponse({"paid": pk})


def counts() -> dict[str, int]:
    """Return the counts of the intruders."""
    return {
        "looks": witness.looks + redis_witness.looks,
        "overlaps": witness.overlaps + redis_witness.overlaps,
    }


def seen(request: HttpRequest) -> HttpResponse:
    """Return the counts of the intruders, and the processor time of this process in seconds."""
    return JsonResponse({**counts(), "cpu": time.process_time()})


OF_KIND: dict[str, tuple[Any, ...]] = {
    SYNC: (bare, lock_resource(KEY)(ruled), ruled, block, redis),
    ASYNC: (abare, lock_resource(KEY)(aruled), aruled, ablock, aredis),
}
urlpatterns = [
    *(
        path(f"{kind}{name}/<int:pk>/", view)
        for kind, views in OF_KIND.items()
        for name, view in zip(("bare", "decorated", "ruled", "block", "redis"), views, strict=True)
    ),
    path("seen/", seen),
]


def sites(handler: Callable[[], Any], masters: list[Any] | None = None) -> dict[str, Any]:
    """Return the applications with LockMiddleware and without it, by their first path."""
    masters = masters or json.loads(os.environ[MASTERS])
    rules = [{"path": f"{kind}ruled/<int:pk>/", "key": KEY} for kind in (SYNC, ASYNC)]
    alias = {**redlock(masters)["default"], "RULES": rules}
    configure(masters, MIDDLEWARE=[*MIDDLEWARE, OURS], REDLOCK={"default": alias})
    found = {"with": handler()}
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        found["without"] = handler()
    return found


def application(masters: list[Any] | None = None) -> Any:
    """Return the WSGI application of both sites: `/with/...` and `/without/...` LockMiddleware."""
    found = sites(WSGIHandler, masters)

    def respond(environ: dict[str, Any], start_response: Any) -> Any:
        _, first, rest = environ["PATH_INFO"].split("/", 2)
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{first}", f"/{rest}"
        return found[first](environ, start_response)

    return respond


def asgi_application() -> Any:
    """Return the ASGI application of the same sites."""
    found = sites(ASGIHandler)

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        _, first, rest = scope["path"].split("/", 2)
        await found[first]({**scope, "path": f"/{rest}"}, receive, send)

    return respond
