"""One mutant for each rule: the rule removed or changed, and the schedule that then fails.

The same schedule passes on the function as it is. How a mutant names what it changes is in
`tests/engine/mutation.py`; code that only moves, or whose names change, leaves it valid. Each file
has the mutants of the modules that it is named for.

`uv run python -m tests.engine.mutants` runs them all and prints each with its rule and the
failure that detects it.
"""

from __future__ import annotations

from tests.engine.mutants import (
    clock_steps,
    hand_on,
    late_masters,
    link_changes,
    links,
    permits,
    protocol,
    quorum,
    replies,
    rounds,
    scripts,
    sent,
    servers,
    waiters,
    waiting,
)
from tests.engine.mutants.mutant import Mutant as Mutant
from tests.engine.mutants.mutant import Schedule as Schedule

MUTANTS: tuple[Mutant, ...] = (
    *quorum.MUTANTS,
    *rounds.MUTANTS,
    *waiting.MUTANTS,
    *protocol.MUTANTS,
    *scripts.MUTANTS,
    *servers.MUTANTS,
    *clock_steps.MUTANTS,
    *late_masters.MUTANTS,
    *link_changes.MUTANTS,
    *sent.MUTANTS,
    *replies.MUTANTS,
    *waiters.MUTANTS,
    *links.MUTANTS,
    *permits.MUTANTS,
    *hand_on.MUTANTS,
)
