"""The steps of an `IdempotentAttempt`; `runner` performs them for sync and async views."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from redlock_django.locking.lock import Lock
from redlock_django.locking.parameters import LockParameters, has_parameters_of

if TYPE_CHECKING:
    from redlock_django.idempotency.flow.recorders import AnyRecorder, UnrecordedTransaction


class InThread(NamedTuple):
    """Call a function that may block on the database, the cache or a file."""

    function: Callable[[], Any]


class CallHook(NamedTuple):
    """Call a hook of the site; for an async view it may be a coroutine function."""

    hook: Callable[..., Any]


class GetUser(NamedTuple):
    """Return the user of the request, or None."""


class HoldLock(NamedTuple):
    """Acquire the in-flight lock on these resources, and hold it until the request is answered.

    `wait` is in seconds. Raises what `Lock` raises.
    """

    resources: tuple[str, ...]
    wait: float


class RunView(NamedTuple):
    """Run the view, with a recorder or a transaction that the request has without a key."""

    recorder: AnyRecorder | UnrecordedTransaction | None


AttemptStep = InThread | CallHook | GetUser | HoldLock | RunView
Steps = Generator[AttemptStep, Any, Any]


class InFlightLock(Lock):
    """The lock whose holder is the running request of a key; it is never skipped.

    `ON_UNAVAILABLE` does not apply: without this lock it is not known whether the first request is
    still running.
    """

    _strict = True

    @has_parameters_of(LockParameters)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The first resource that is refused has a meaning, and every client has the same order.
        self._parameters.keep_order()
