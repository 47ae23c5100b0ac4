"""The release of what a lost attempt may have set, and when it is left to the links."""

from __future__ import annotations

from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.quorum import LOST, Tally


def leaves_late_grants(ask: Command | None, tally: Tally) -> bool:
    """Return whether the links release what a master grants after this round was lost.

    They do so once another client is proved to hold the lock, or to have the turn. The masters that
    have not answered by then nearly always refuse as well: an undo is only sent to those that are
    still silent when the client asks again (`Wait.undo_silent`).
    """
    return isinstance(ask, Acquire) and tally.verdict is LOST and tally.rival_won


def undo_of_late_grant(ask: Acquire) -> Release:
    """Return the release of what a master has granted to an attempt that was lost before.

    The waiter stays in the queues, in one of which it may be again.
    """
    return undo_of(ask, leave=False, calls=not ask.waiter)


def undo_of(ask: Acquire, *, leave: bool, calls: bool = True) -> Release:
    """Return the command that releases what `ask` may have set."""
    return Release(
        ask.deployment, ask.resources, ask.value, waiter=ask.waiter if leave else "", calls=calls,
        limit=ask.limit,
    )  # fmt: skip
