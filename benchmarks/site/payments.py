"""Idempotent payments: the cost of the first request, and what a replay saves."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import django
from django.conf import settings

from benchmarks.peers.ours import redlock
from benchmarks.site.views import Witness

SLOW = 0.005
"""Seconds that the view takes whose response is replayed."""


class Payments:
    """Calls views as Django does under ATOMIC_REQUESTS, one row each in SQLite; no HTTP."""

    masters_used = None

    def __init__(self, masters: list[Any]) -> None:
        self._file = tempfile.TemporaryDirectory(prefix="redlock-payments-")
        settings.configure(
            SECRET_KEY="insecure: for a benchmark only",
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["testserver"],
            INSTALLED_APPS=[
                "django.contrib.contenttypes",
                "django.contrib.auth",
                "redlock_django",
            ],
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.sqlite3",
                    "NAME": str(Path(self._file.name) / "payments.sqlite3"),
                    "ATOMIC_REQUESTS": True,
                    "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL;"},
                }
            },
            REDLOCK=redlock(masters),
            USE_TZ=True,
        )
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        self._views = self._made(masters)

    def key(self, resource: str) -> str:
        return f"redlock:lock:{resource}"

    def _made(self, masters: list[Any]) -> dict[str, Any]:
        from django.contrib.auth.models import Group
        from django.core.handlers.base import BaseHandler
        from django.http import HttpRequest, HttpResponse

        from redlock_django import idempotent, lock_resource

        numbers = count(1)
        self.witness = Witness()
        self.witness.masters([(host, port) for host, port in masters])

        def pay(request: HttpRequest, pk: int) -> HttpResponse:
            Group.objects.create(name=f"payment {next(numbers)}")
            return HttpResponse(b'{"paid": 1}', status=201, content_type="application/json")

        def locked(request: HttpRequest, pk: int) -> HttpResponse:
            self.witness.see(f"order:{pk}")
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


def payments(
    site: Payments, intruder: object, *, seconds: float, warm_up: int = 10
) -> dict[str, Any]:
    """Call every view in turn; return the p50 of each in µs."""
    numbers = count(1)
    for _ in range(warm_up):
        site.turn(next(numbers))
    taken: dict[str, list[float]] = {}
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        for name, took in site.turn(next(numbers)).items():
            taken.setdefault(name, []).append(took)
    views = {name: {"p50_us": median(values) * 1e6} for name, values in taken.items()}
    return {"views": views, "looks": site.witness.looks, "overlaps": site.witness.overlaps}
