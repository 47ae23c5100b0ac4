"""Requests through the middleware and the URLs of a site, without a server: what a lock adds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any

from django.http import HttpRequest, HttpResponse

from benchmarks import site
from benchmarks.worker.bench import Bench
from benchmarks.worker.figures import latencies

WARM_UP = 10


async def prepare(bench: Bench) -> None:
    """Make the tables of a database, and trust a store that has forgotten nothing."""
    from django.conf import settings
    from django.core.management import call_command

    from redlock_django import locks

    if settings.DATABASES["default"]["ENGINE"] != "django.db.backends.dummy":
        call_command("migrate", verbosity=0)
    locks["default"].backend.declare_new()


async def locked(bench: Bench, *, seconds: float) -> dict[str, Any]:
    """Request a view without a lock and with one in turn; return p50 and what the lock adds."""

    def watched(request: HttpRequest, pk: int) -> HttpResponse:
        if not bench.intruder.looks:
            bench.intruder.look(bench.contender.key(f"order:{pk}"))
        return site.pay(request, pk)

    requests = site.Requests({"bare": site.pay, "locked": bench.contender.view(watched)})

    def ask(view: str, number: int) -> None:
        requests.get(view, number % 64 + 1)

    found = _beside_bare(dict.fromkeys(("bare", "locked"), ask), seconds)
    return {**found, "looks": bench.intruder.looks, "overlaps": bench.intruder.overlaps}


async def posts(bench: Bench, *, seconds: float) -> dict[str, Any]:
    """POST to a view, to the same idempotent, again to that, and to one with a key of its own."""
    requests = site.Requests(site.posts())

    def ask(view: str, number: int) -> None:
        requests.post(view, f"{view}-{number}")

    def again(view: str, number: int) -> None:
        requests.post("idempotent", f"idempotent-{number}", replayed=True)

    return _beside_bare({"bare": ask, "idempotent": ask, "replay": again, "own-key": ask}, seconds)


_numbers = count()  # no key of an earlier job comes again


def _beside_bare(asks: dict[str, Callable[[str, int], None]], seconds: float) -> dict[str, Any]:
    """Return what each kind of request takes more than a bare one, of the medians, in µs."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    until = time.perf_counter() + seconds
    while len(took["bare"]) < WARM_UP + 1 or time.perf_counter() < until:
        number = next(_numbers)
        for view, ask in asks.items():
            began = time.perf_counter()
            ask(view, number)
            took[view].append(time.perf_counter() - began)
    p50 = {view: latencies(values[WARM_UP:])["p50_us"] for view, values in took.items()}
    return {view: value - p50["bare"] for view, value in p50.items()} | {"bare": p50["bare"]}
