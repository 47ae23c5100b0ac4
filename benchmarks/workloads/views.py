"""Requests per second: a bare view, a locked one, one under django-redis's cache.lock.

All in one server process, in turns: called as WSGI in a loop (Django alone, nothing else to
hide behind), and served by gunicorn (one process, eight threads) to eight connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.conductor import Plan


def by_view(plan: Plan, job: str) -> Callable[[str, str, str], dict[str, Any]]:
    """A measurement whose worker does a job with several views in turns."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            seconds = plan.seconds * 2
            worker.ask(job=job, seconds=seconds)
            said = worker.answer(seconds * 4)
        seen = {"looks": said["looks"], "overlaps": said["overlaps"]}
        return {view: {**figures, **seen} for view, figures in said["views"].items()}

    return measure


def run(plan: Plan) -> None:
    """Five masters for the locked view, the first of them for cache.lock; free."""
    groups = [
        (setting, case, (f"site {case}",))
        for setting in plan.in_settings("free")
        for case in ("called", "served")
    ]
    plan.interleaved("views", groups, by_view(plan, "requests"), parts="contender")
