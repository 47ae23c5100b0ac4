"""The cost of idempotent requests, and what a replay saves.

One caller, no HTTP: a view with one row in SQLite, locked; the same one idempotent; both; and
a view that takes 5 ms, and the replay of its response.
"""

from __future__ import annotations

from benchmarks.conductor import Plan
from benchmarks.workloads.views import by_view


def run(plan: Plan) -> None:
    """Use five masters and the setting free."""
    groups = [(setting, "called", ("payments",)) for setting in plan.in_settings("free")]
    plan.interleaved("idempotency", groups, by_view(plan, "payments"), parts="contender")
