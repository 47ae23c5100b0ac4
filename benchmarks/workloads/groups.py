"""Pairs of 16 threads over one, two and four groups of three masters, scheduled freely.

So more masters can use more processors.
"""

from __future__ import annotations

from benchmarks.harness.workload import Table, Workload, of_cases

COUNTS = (1, 2, 4)
SIZE = 3

WORKLOAD = Workload(
    "groups",
    settings=("free",),
    cases=lambda setting: [(str(n), ("ours",)) for n in COUNTS],
    job="threads.threads",
    how=lambda case: {"n": SIZE * int(case), "options": {"groups": int(case)}, "count": 16},
    masters=SIZE * max(COUNTS),
    tables=[
        Table(
            "Groups of three masters: 16 threads, distinct keys",
            [
                *of_cases("pairs/s, {}", "free", COUNTS, "per_s"),
                *of_cases("CPU µs a pair, {}", "free", COUNTS, "cpu_us"),
            ],
        )
    ],
)
