"""The costs of acquire and release, of a permit, of a lock that is handed on, and of a refusal."""

from __future__ import annotations

from functools import partial

from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Target

PEERS = ("ours", "floor", "floor SET", "redlock-py", "redis-py's Lock", "ours async",
         "redis-py's Lock async")  # fmt: skip
OURS = ("ours", "ours async")
REFUSING = ("ours", "floor", "floor SET", "redis-py's Lock", "ours async")
LIMIT = 3
HANDED = {"acquire and release": ("acquire", "release"), "resume": ("resume",)}


def measure(lab: Lab) -> None:
    """Measure a round."""
    for setting in ("pin", "rtt") if lab.far.masters else ("pin",):
        for name in lab.turns(*PEERS):
            lab.measure("pairs", setting, name, "pairs.pairs", setting=setting)
        for name in lab.turns(*REFUSING):
            lab.measure("refusals", setting, name, "refusals.refusals", setting=setting, held=1)
    pinned = partial(lab.measure, setting="pin")
    for name in lab.turns(*OURS):
        pinned("pairs", "permit", name, "pairs.pairs", options={"limit": LIMIT})
        pinned("refusals", "pair", name, "pairs.pairs")
        pinned("refusals", "all taken", name, "refusals.refusals",
               options={"limit": LIMIT}, held=LIMIT)  # fmt: skip
        for step, timed in HANDED.items():
            lab.measure("pairs", step, name, "pairs.handed_on", timed=timed)


PYTHON = (
    "A pair is ten sends, ten reads and two polls; of the Python code around them no part is "
    "large (`python -m benchmarks pair_parts`). One call into C would help."
)
REFUSAL = "A refusal is counted from its bytes; the rest is five sends, five reads, an exception."
RESUME = "A resume is an acquire on the condition of the ticket: it saves the release of a pair."
PAIR, REFUSE = "acquire + release", "refuse a held lock"

TARGETS = [
    Target(PAIR, "client CPU by floor", 1.8, "pairs", ["pin"], "cpu_us", by="floor", why=PYTHON),
    Target(PAIR, "p50 by floor", 1.2, "pairs", ["pin"], by="floor", why=PYTHON),
    Target(PAIR, "p50 by floor, 1 ms away", 1.12, "pairs", ["rtt"], by="floor", why=PYTHON),
    Target("a permit of 3", "client CPU by a lock", 1.15, "pairs", ["permit"], "cpu_us",
           by_case="pin"),
    Target("resume a lock that was handed on", "p50 by acquire + release", 0.75, "pairs",
           ["resume"], by_case="acquire and release", why=RESUME),
    Target(REFUSE, "p50 by floor", 2, "refusals", ["pin"], by="floor", why=REFUSAL),
    Target(REFUSE, "client CPU by a pair", 0.5, "refusals", ["pin"], "cpu_us", by_case="pair",
           why=REFUSAL),
    Target(REFUSE, "client CPU by five refused SETs", 2.2, "refusals", ["pin"], "cpu_us",
           by="floor SET", why=REFUSAL),
    Target("refuse where all permits are taken", "client CPU by a refused lock", 1.5, "refusals",
           ["all taken"], "cpu_us", by_case="pin"),
]  # fmt: skip
