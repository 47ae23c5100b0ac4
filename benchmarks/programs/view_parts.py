"""The bytecodes of a request to a locked or idempotent view, beyond those of the bare view.

`uv run python -m benchmarks view_parts` prints a table. The store is in memory, so that its own
work is left out: the columns are those of the package above the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import django
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View

import redlock_django
from benchmarks.harness.workload import markdown
from benchmarks.programs import count_bytecodes
from benchmarks.site import MIDDLEWARE, OURS
from redlock_django import IdempotentMixin, LockResourceMixin, idempotent, lock, lock_resource

REQUESTS = 20
PACKAGE = f"{Path(redlock_django.__file__).parent}/"
ABOVE = {
    "the view's decorator": ("web/", "middleware.py", "conf/"),
    "idempotency": ("idempotency/",),
    "the lock above the store": ("locking/",),
}
"""The folders of each column; what Django and Python's library do for them counts as the rest."""
REST = "Django and Python for these"


def bare(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer without a lock."""
    return HttpResponse("done")


def with_lock(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer under a lock that the view acquires itself."""
    with lock(f"order:{pk}", wait=0):
        return HttpResponse("done")


class Bare(View):
    """Answers without a lock."""

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Answer."""
        return HttpResponse("done")


class Locked(LockResourceMixin, Bare):
    """Locks by its mixin."""

    lock_key = "order:<int:pk>"


@method_decorator(lock_resource("order:<int:pk>"), name="dispatch")
class Decorated(Bare):
    """Locks by a decorator of its dispatch."""


class Idempotent(IdempotentMixin, Bare):
    """Takes effect once for each key; these requests have none."""


VIEWS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "`with lock()` in the view": (with_lock, bare),
    "`@lock_resource`": (lock_resource("order:<int:pk>")(bare), bare),
    "`LockResourceMixin`": (Locked.as_view(), Bare.as_view()),
    "`@method_decorator(lock_resource)`": (Decorated.as_view(), Bare.as_view()),
    "`@idempotent`, no key": (idempotent(bare), bare),
    "`IdempotentMixin`, no key": (Idempotent.as_view(), Bare.as_view()),
}
"""Each view, and the one that it is compared with."""

urlpatterns = [
    path(f"{place}/{which}/<int:pk>/", view)
    for place, views in enumerate(VIEWS.values())
    for which, view in enumerate(views)
]


SITE: dict[str, Any] = {
    "ALLOWED_HOSTS": ["testserver"],
    "MIDDLEWARE": [*MIDDLEWARE, OURS],
    "REDLOCK": {"default": {"BACKEND": "redlock_django.backends.memory.MemoryBackend"}},
    "ROOT_URLCONF": __name__,
}
"""The settings of a site of these views."""


def main() -> None:
    """Print the table."""
    settings.configure(
        INSTALLED_APPS=["redlock_django"], SECRET_KEY="insecure: for a benchmark only", **SITE
    )
    django.setup()
    print(table())


def table() -> str:
    """Return the table of all views."""
    handler = BaseHandler()
    handler.load_middleware()
    rows = []
    for place, view in enumerate(VIEWS):
        ours, other = (bytecodes(handler, f"/{place}/{which}/7/") for which in range(2))
        beyond = {column: (ours[column] - other[column]) / REQUESTS for column in (*ABOVE, REST)}
        rows.append([view, *(f"{count:,.0f}" for count in beyond.values())])
    return markdown(["View", *ABOVE, REST], rows)


def bytecodes(handler: BaseHandler, url: str) -> Counter[str]:
    """Return the bytecodes of requests to a URL, by column."""

    def request() -> None:
        for _ in range(REQUESTS):
            handler.get_response(RequestFactory().get(url)).close()

    request()  # caches are hot now
    return count_bytecodes(request, column_of)


def column_of(frame: FrameType) -> str:
    """Return the column of a frame; an empty string for the store."""
    place = frame.f_code.co_filename
    if not place.startswith(PACKAGE):
        return REST if not is_of_store(frame) else ""
    inside = place.removeprefix(PACKAGE)
    return next((name for name, folders in ABOVE.items() if inside.startswith(folders)), "")


def is_of_store(frame: FrameType) -> bool:
    """Return whether a frame is called by a store, at any depth."""
    caller: FrameType | None = frame
    while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
        caller = caller.f_back
    return caller is not None and column_of(caller) == ""
