"""The steps of an `IdempotentAttempt`; `execution` performs them for sync and async views."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from redlock_django.idempotency.recorders import AnyRecorder, UnrecordedTransaction


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
