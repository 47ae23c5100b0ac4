"""The cost of idempotent requests, and what a replay saves.

One caller, no HTTP: a view with one row in SQLite, locked; the same one idempotent; both; and
a view that takes 5 ms, and the replay of its response.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import site
from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Table, Target, Workload
from benchmarks.worker.bench import Bench
from benchmarks.worker.contender import Contender
from benchmarks.workloads.views import by_view
from redlock_django import idempotent, lock_resource

SLOW = 0.005
"""Seconds that the view takes whose response is replayed."""


class Payments(Contender):
    """Calls views as Django does under ATOMIC_REQUESTS, one row each in SQLite; no HTTP."""

    prefix = "redlock:lock:"
    seen = staticmethod(site.counts)

    def __init__(self, masters: list[Any]) -> None:
        self._file = tempfile.TemporaryDirectory(prefix="redlock-payments-")
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(Path(self._file.name) / "payments.sqlite3"),
            "ATOMIC_REQUESTS": True,
            "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL;"},
        }
        apps = ["django.contrib.contenttypes", "django.contrib.auth", "redlock_django"]
        site.configure(masters, INSTALLED_APPS=apps, DATABASES={"default": database}, USE_TZ=True)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        self._views = self._made()

    def _made(self) -> dict[str, Any]:
        from django.contrib.auth.models import Group
        from django.core.handlers.base import BaseHandler
        from django.http import HttpRequest, HttpResponse

        numbers = count(1)

        def pay(request: HttpRequest, pk: int) -> HttpResponse:
            Group.objects.create(name=f"payment {next(numbers)}")
            return HttpResponse(b'{"paid": 1}', status=201, content_type="application/json")

        def locked(request: HttpRequest, pk: int) -> HttpResponse:
            site.witness.see(f"order:{pk}")
            return pay(request, pk)

        def slow(request: HttpRequest, pk: int) -> HttpResponse:
            time.sleep(SLOW)
            return pay(request, pk)

        served = BaseHandler().make_view_atomic
        lock = lock_resource("order:<int:pk>")
        return {
            "locked": served(lock(locked)),
            "idempotent": served(idempotent(pay)),
            "idempotent and locked": served(idempotent(lock(locked))),
            "slow": served(slow),
            "slow, first": served(idempotent(slow)),
        }

    def turn(self, number: int) -> dict[str, float]:
        """Call every view once and the last one again; return the seconds of each."""
        took = {
            name: self._ask(name, number, f"{number}-{place}")
            for place, name in enumerate(self._views)
        }
        last = len(self._views) - 1
        took["replay"] = self._ask("slow, first", number, f"{number}-{last}", replayed=True)
        return took

    def _ask(self, name: str, number: int, key: str, *, replayed: bool = False) -> float:
        from django.contrib.auth.models import User
        from django.test import RequestFactory

        request = RequestFactory().post(
            "/", b'{"amount": 5}', "application/json", headers={"Idempotency-Key": key}
        )
        request.user = User(pk=1)
        began = time.perf_counter()
        answer = self._views[name](request, pk=number)
        took = time.perf_counter() - began
        if answer.status_code != 201 or (answer.get("Idempotent-Replayed") == "true") != replayed:
            raise RuntimeError(f"{name} was answered {answer.status_code}, {answer.headers}")
        return took


async def payments(bench: Bench, *, seconds: float, warm_up: int = 10) -> dict[str, Any]:
    """Call every view in turn; return the p50 of each in µs."""
    client, numbers = bench.contender, count(1)
    for _ in range(warm_up):
        client.turn(next(numbers))
    taken: dict[str, list[float]] = {}
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        for name, took in client.turn(next(numbers)).items():
            taken.setdefault(name, []).append(took)
    views = {name: {"p50_us": median(values) * 1e6} for name, values in taken.items()}
    return {"views": views, **client.seen()}


REPLAY = Where("idempotency", "free", "called", "replay").by("slow")

WORKLOAD = Workload(
    "idempotency",
    settings=("free",),
    cases=lambda setting: [("called", ("payments",))],
    measure=partial(by_view, "idempotency.payments"),
    parts="contender",
    tables=[
        Table(
            "Idempotent requests, p50; `slow` takes 5 ms, `replay` is its recorded answer",
            [
                Column("µs", "free", "called", "p50_us"),
                Column("× slow", "free", "called", "p50_us", by="slow"),
            ],
        )
    ],
    targets=[Target("the replay of a view that takes 5 ms", "p50 by the view itself", 1, REPLAY)],
)
