"""The decisions for every combination of a record and the state of the lock."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from redlock_django.idempotency.protocol import (
    Action,
    KeyLock,
    RecordState,
    RecordStatus,
    ViewOutcome,
    decide,
    view_outcome,
)
from redlock_django.idempotency.refusals import (
    KEY_EXPIRED,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    OUTCOME_UNCERTAIN,
    RESULT_UNAVAILABLE,
    UNAVAILABLE,
)
from redlock_django.models import IdempotencyRecord
from redlock_django.web.answers import Problem

EVERY = [
    None,
    *(RecordStatus(*known) for known in product(RecordState, (True, False), (True, False))),
]
CASES = list(product(EVERY, KeyLock))


def test_a_view_runs_only_under_its_lock_and_only_where_nothing_is_known() -> None:
    for known, lock in CASES:
        runs = decide(known, lock) is Action.RUN
        assert runs == (lock is KeyLock.HELD and known is None)


def test_only_the_same_request_is_given_a_response_that_is_there() -> None:
    for known, lock in CASES:
        replays = decide(known, lock) is Action.REPLAY
        assert replays == (known == RecordStatus(RecordState.COMPLETED))


def test_a_lock_that_was_tried_is_not_asked_for_again() -> None:
    for known, lock in CASES:
        asks = decide(known, lock) is Action.LOCK
        running = known is not None and known.same and known.state is RecordState.RUNNING
        unknown = known is None or running
        assert asks == (lock is KeyLock.NOT_TRIED and unknown)


def test_another_request_with_the_key_is_refused_first() -> None:
    for known, lock in CASES:
        if known is not None and not known.same:
            assert decide(known, lock) is KEY_REUSED


def test_a_request_that_runs_without_its_lock_is_doubted() -> None:
    for known, lock in CASES:
        doubts = decide(known, lock) is Action.MARK_UNCERTAIN
        running = known is not None and known.same and known.state is RecordState.RUNNING
        assert doubts == (running and lock is KeyLock.HELD)


@pytest.mark.parametrize(
    ("known", "lock", "refusal"),
    [
        (None, KeyLock.BUSY, KEY_IN_FLIGHT),
        (None, KeyLock.BUSY_OTHERWISE, KEY_REUSED),
        (None, KeyLock.NO_QUORUM, UNAVAILABLE),
        (RecordStatus(RecordState.RUNNING), KeyLock.BUSY, KEY_IN_FLIGHT),
        (RecordStatus(RecordState.RUNNING), KeyLock.NO_QUORUM, UNAVAILABLE),
        (RecordStatus(RecordState.UNCERTAIN), KeyLock.HELD, OUTCOME_UNCERTAIN),
        (RecordStatus(RecordState.UNCERTAIN), KeyLock.NOT_TRIED, OUTCOME_UNCERTAIN),
        (RecordStatus(RecordState.TOMBSTONE), KeyLock.NOT_TRIED, RESULT_UNAVAILABLE),
        (RecordStatus(RecordState.TOMBSTONE, expired=True), KeyLock.NOT_TRIED, KEY_EXPIRED),
        (RecordStatus(RecordState.COMPLETED, expired=True), KeyLock.NOT_TRIED, KEY_EXPIRED),
        (RecordStatus(RecordState.COMPLETED, expired=True), KeyLock.NO_QUORUM, KEY_EXPIRED),
    ],
)
def test_refusals(known: RecordStatus | None, lock: KeyLock, refusal: Problem) -> None:
    assert decide(known, lock) is refusal


VIEWS: list[Any] = list(
    product([200, 201, 302, 400, 403, 404, 408, 423, 425, 429, 500, 503], *[(True, False)] * 2)
)


def test_a_view_that_is_not_undone_never_runs_again() -> None:
    for status, undone, storable in VIEWS:
        outcome = view_outcome(status, undone=undone, storable=storable)
        if outcome is ViewOutcome.NO_EFFECT:
            assert undone
            assert status >= 500
        if outcome in (ViewOutcome.COMPLETED, ViewOutcome.TOMBSTONE):
            assert (outcome is ViewOutcome.COMPLETED) == storable
            assert status < 500
        if outcome is ViewOutcome.UNCERTAIN:
            assert not undone


def test_a_final_answer_is_kept_whatever_else_is_true() -> None:
    for status, undone, storable in VIEWS:
        if status < 500:
            outcome = view_outcome(status, undone=undone, storable=storable)
            assert outcome in (ViewOutcome.COMPLETED, ViewOutcome.TOMBSTONE)


def test_the_table_knows_the_same_states() -> None:
    assert {state.value for state in RecordState} == set(IdempotencyRecord.State.values)
