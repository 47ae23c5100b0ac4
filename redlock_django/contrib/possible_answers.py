"""The answers that decorators, mixins and rules may give instead of a view, for a schema."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.conf import settings

from redlock_django.exceptions import (
    BadResource,
    IncompleteBody,
    KeyExpired,
    KeyInFlight,
    KeyMissing,
    KeyUnscoped,
    LimitReached,
    LockLost,
    RedlockError,
    RequestTooLarge,
    ResourceLocked,
    StoreUnavailable,
    TooManyRecords,
    TooManyWaiters,
)
from redlock_django.idempotency.registration import REFUSALS
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.locking.services import locks
from redlock_django.web.answers import Problem, problem_type_of_class
from redlock_django.web.options import LockOptions

_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_Errors = Iterator[tuple[type[RedlockError], int | None]]
"""Errors of which a view answers some request, and the HTTP status if it is a setting."""

Options = LockOptions | IdempotentOptions


@dataclass(frozen=True)
class PossibleAnswers:
    """The answers that an operation may give to some request instead of its view.

    `problems` are the problem types by HTTP status. `replays` is whether an answer of the view may
    be a replay. `key` are the settings of the header that has the key, or None: the operation has
    no key, or it is somewhere else in the request.
    """

    problems: Mapping[int, Collection[Problem]]
    replays: bool
    key: IdempotencySettings | None


def options_of(*functions: Any) -> Iterator[Options]:
    """Yield the options of the decorators of functions.

    A decorator leaves its options on its function and on those around it.
    """
    for function in functions:
        for name in ("lock_options", "idempotent_options"):
            options = getattr(function, name, None)
            if isinstance(options, LockOptions | IdempotentOptions):
                yield options


def possible_answers(options: Iterable[Options], method: str) -> PossibleAnswers | None:
    """Return what an operation with these options may answer to requests with an HTTP method.

    Options that are given twice count once. Return None for an operation that nothing of this
    package answers.
    """
    errors: list[tuple[type[RedlockError], int | None]] = []
    replays, key = False, None
    for one in {id(one): one for one in options}.values():
        if isinstance(one, LockOptions):
            if one.methods is None or method in one.methods:
                errors += _errors_of_lock(one, method)
        elif method in (current := one.settings()).methods:
            errors += _errors_of_idempotency(one, current)
            replays, key = True, current if one.key is None else key
    problems: dict[int, list[Problem]] = {}
    for error, status in errors:
        if (problem := problem_type_of_class(error)) is not None:
            known = problems.setdefault(status or problem.status, [])
            known += [] if problem in known else [problem]
    return PossibleAnswers(dict(sorted(problems.items())), replays, key) if problems else None


def _errors_of_lock(lock: LockOptions, method: str) -> _Errors:
    held = ResourceLocked if lock.limit in (None, 1) else LimitReached
    yield held, lock.status or locks[lock.using].settings.status
    yield StoreUnavailable, None
    yield LockLost, None
    if any(template.names or template.needs_request for template in lock.templates):
        yield BadResource, None
    if method in _WITH_BODY:
        yield IncompleteBody, None


def _errors_of_idempotency(options: IdempotentOptions, current: IdempotencySettings) -> _Errors:
    """Yield the refusals without those that the arguments and the settings exclude."""
    ignores_unscoped = current.on_unscoped == "ignore" and not current.required
    possible: dict[type[RedlockError], bool] = {
        KeyMissing: current.required,
        KeyUnscoped: not (isinstance(options.scope, str) or ignores_unscoped),
        KeyExpired: current.on_expired == "reject",
        RequestTooLarge: bool(current.max_request_bytes or settings.DATA_UPLOAD_MAX_MEMORY_SIZE),
        TooManyRecords: current.max_records is not None and options.scope is None,
        TooManyWaiters: current.on_in_flight in ("auto", "wait"),
    }
    is_early = current.on_in_flight == "too-early"
    for error in REFUSALS:
        if possible.get(error, True):
            yield error, HTTPStatus.TOO_EARLY if is_early and error is KeyInFlight else None
    yield IncompleteBody, None
