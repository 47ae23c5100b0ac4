"""Run, replay or refuse: what to do with a request, and what to record of it. No I/O.

`decide` is asked before the view runs, first without the key's lock and, if it says so, once more
with it. `settle` is asked after the view, or after its failure.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

from redlock_django.idempotency.errors import (
    IdempotencyRefused,
    IdempotencyUnavailable,
    KeyExpired,
    KeyInFlight,
    KeyReused,
    OutcomeUncertain,
    ResultUnavailable,
)


class RecordState(StrEnum):
    """What became of the first request with a key."""

    RUNNING = "running"  # or was, when its process died
    COMPLETED = "completed"
    TOMBSTONE = "tombstone"  # completed, but there is no response to replay
    UNCERTAIN = "uncertain"  # it may have had its effect


FINISHED = frozenset({RecordState.COMPLETED, RecordState.TOMBSTONE})
"""The states that end with their retention; the others last until somebody finds out."""


class Known(NamedTuple):
    """What is recorded of a key.

    `same` is whether it was the same request, `expired` whether its retention is over.
    """

    state: RecordState
    same: bool = True
    expired: bool = False


class KeyLock(Enum):
    """What is known of the lock that a request holds while it runs."""

    NOT_TRIED = "not tried"
    HELD = "held"  # by us
    BUSY = "busy"  # the same request is running
    BUSY_OTHERWISE = "busy otherwise"  # another request with the same key is running
    DOWN = "down"  # it cannot be asked


class Step(Enum):
    """What to do next, if the request is not refused."""

    LOCK = "take the key's lock, and ask again"
    RUN = "run the view"
    REPLAY = "answer what the first request was answered"
    DOUBT = "record that the outcome is uncertain, and refuse"


Decision = Step | type[IdempotencyRefused]

_BUSY: dict[KeyLock, Decision] = {
    KeyLock.NOT_TRIED: Step.LOCK,
    KeyLock.BUSY: KeyInFlight,
    KeyLock.DOWN: IdempotencyUnavailable,
}


def decide(known: Known | None, lock: KeyLock, *, rerun_expired: bool = False) -> Decision:
    """Say what to do with a request; a refusal is the exception to answer it with.

    `rerun_expired` is whether a key past its retention is as good as new.
    """
    over = known is not None and known.expired and known.state in FINISHED
    if known is None or (over and rerun_expired):
        return {**_BUSY, KeyLock.HELD: Step.RUN, KeyLock.BUSY_OTHERWISE: KeyReused}[lock]
    if not known.same:
        return KeyReused
    if over:
        return KeyExpired
    match known.state:
        case RecordState.COMPLETED:
            return Step.REPLAY
        case RecordState.TOMBSTONE:
            return ResultUnavailable
        case RecordState.UNCERTAIN:
            return OutcomeUncertain
    # It says "running", and we hold the lock that it would hold.
    return {**_BUSY, KeyLock.HELD: Step.DOUBT, KeyLock.BUSY_OTHERWISE: KeyInFlight}[lock]


class Fate(Enum):
    """What is recorded of a view that ran."""

    KEEP = "completed, with its response"
    TOMBSTONE = "completed, without it"
    FORGET = "nothing: it had no effect, and may run again"
    DOUBT = "uncertain"


BUSY_STATUSES = frozenset({408, 423, 425, 429})
"""Answers of a view that has done nothing yet, and would do it if asked again."""


def settle(
    status: int | None, *, undone: bool, refused: bool, storable: bool, keep_5xx: bool
) -> Fate:
    """Say what to record of a view that answered with `status`, None if it raised.

    `undone` is whether not recording it takes its effects back as well, because they are in a
    transaction. `refused` is whether what it raised is meant for the client (not found, say).
    """
    if status is None:
        return Fate.FORGET if undone or refused else Fate.DOUBT
    if status in BUSY_STATUSES:
        return Fate.FORGET
    if status >= 500 and not keep_5xx:
        return Fate.FORGET if undone else Fate.DOUBT
    return Fate.KEEP if storable else Fate.TOMBSTONE
