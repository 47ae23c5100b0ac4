"""The decisions: run, replay or refuse a request, and what to record of it. No I/O.

`decide` is called before the view runs: first without the lock of the key and, if it returns
`Action.LOCK`, again with the lock. `view_outcome` is called with what the view, or its
site for an error of the view, has answered.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

from redlock_django.idempotency.refusals import (
    KEY_EXPIRED,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    OUTCOME_UNCERTAIN,
    RESULT_UNAVAILABLE,
    UNAVAILABLE,
)
from redlock_django.web.answers import Problem


class RecordState(StrEnum):
    """The recorded state of the first request with a key."""

    RUNNING = "running"  # or interrupted, if its process died
    COMPLETED = "completed"
    TOMBSTONE = "tombstone"  # completed, without a response to replay
    UNCERTAIN = "uncertain"  # it may have taken effect


FINISHED = (RecordState.COMPLETED, RecordState.TOMBSTONE)
"""The states that end with their retention."""

UNRESOLVED = (RecordState.RUNNING, RecordState.UNCERTAIN)
"""The states that last until they are resolved."""


class RecordStatus(NamedTuple):
    """The meaning of a record for a request.

    `same` is whether the record is of the same request, `expired` whether its retention is over.
    """

    state: RecordState
    same: bool = True
    expired: bool = False


class KeyLock(Enum):
    """The state of the lock that a request holds while it runs."""

    NOT_TRIED = "not tried"
    HELD = "held"  # by this request
    BUSY = "busy"  # the same request is running
    BUSY_OTHERWISE = "busy otherwise"  # a different request with the same key is running
    NO_QUORUM = "no quorum"  # too few servers answered


class Action(Enum):
    """The next action, if the request is not refused."""

    LOCK = "acquire the lock of the key, and decide again"
    RUN = "run the view"
    REPLAY = "return the response of the first request"
    MARK_UNCERTAIN = "record that the outcome is uncertain, and refuse"


Decision = Action | Problem

_WITHOUT_LOCK: dict[KeyLock, Decision] = {
    KeyLock.NOT_TRIED: Action.LOCK,
    KeyLock.BUSY: KEY_IN_FLIGHT,
    KeyLock.NO_QUORUM: UNAVAILABLE,
}


def decide(record: RecordStatus | None, lock: KeyLock) -> Decision:
    """Return what to do with a request, or why it is refused."""
    if record is None:
        return {**_WITHOUT_LOCK, KeyLock.HELD: Action.RUN, KeyLock.BUSY_OTHERWISE: KEY_REUSED}[lock]
    if not record.same:
        return KEY_REUSED
    if record.expired and record.state in FINISHED:
        return KEY_EXPIRED
    match record.state:
        case RecordState.COMPLETED:
            return Action.REPLAY
        case RecordState.TOMBSTONE:
            return RESULT_UNAVAILABLE
        case RecordState.UNCERTAIN:
            return OUTCOME_UNCERTAIN
    # The state is "running". If this request holds the lock, the first one was interrupted.
    interrupted: dict[KeyLock, Decision] = {
        KeyLock.HELD: Action.MARK_UNCERTAIN,
        KeyLock.BUSY_OTHERWISE: KEY_IN_FLIGHT,
    }
    return {**_WITHOUT_LOCK, **interrupted}[lock]


class ViewOutcome(Enum):
    """The outcome to record of a view that ran."""

    COMPLETED = "completed, with its response"
    TOMBSTONE = "completed, without its response"
    NO_EFFECT = "delete the record: its effects are rolled back, and it may run again"
    UNCERTAIN = "uncertain"


def view_outcome(status: int, *, undone: bool, storable: bool) -> ViewOutcome:
    """Return what to record of a view that answered with `status`.

    `undone` is whether its effects are rolled back, because they are in a transaction of the
    package. Nothing else makes a key unused again: whatever its status, an answer does not prove
    that the view did nothing.
    """
    if status >= 500:
        return ViewOutcome.NO_EFFECT if undone else ViewOutcome.UNCERTAIN
    return ViewOutcome.COMPLETED if storable else ViewOutcome.TOMBSTONE
