"""What it costs to be able to send a request again, and what a replay saves.

One caller, no HTTP: a view with one row in SQLite, locked; the same one idempotent; both; and
a view that takes 5 ms beside the replay of its answer.
"""

from __future__ import annotations

from benchmarks.conductor import Plan
from benchmarks.workloads.views import by_view


def run(plan: Plan) -> None:
    """Five masters, free."""
    groups = [(setting, "called", ("payments",)) for setting in plan.in_settings("free")]
    plan.interleaved("idempotency", groups, by_view(plan, "payments"), parts="contender")
