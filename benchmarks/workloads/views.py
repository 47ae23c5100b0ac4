"""Requests per second of a bare view, a locked view, and one with django-redis's cache.lock.

All run in turns in one server process: called as WSGI in a loop (only Django), and served by
gunicorn (one process, eight threads) to eight connections. What LockMiddleware costs is taken from
the processor time of that process: on a busy machine, a site beside itself makes 0.97 to 1.08 times
the requests per second, and takes 1.00 times the processor time (2026-11-23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.conductor import Plan


def by_view(plan: Plan, job: str) -> Callable[[str, str, str], dict[str, Any]]:
    """Return a measurement in which the worker runs a job with several views in turns."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            seconds = plan.seconds * 2
            worker.ask(job=job, seconds=seconds)
            said = worker.answer(seconds * 4)
        seen = {"looks": said["looks"], "overlaps": said["overlaps"]}
        return {view: {**figures, **seen} for view, figures in said["views"].items()}

    return measure


def run(plan: Plan) -> None:
    """Use five masters for the locked view and the first for cache.lock; setting free."""
    groups = [
        (setting, case, (f"site {case}",))
        for setting in plan.in_settings("free")
        for case in ("called", "served")
    ]
    plan.interleaved("views", groups, by_view(plan, "requests"), parts="contender")
