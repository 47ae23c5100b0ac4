"""How `@idempotent` and `@lock_resource` meet on one view: dedupe, then lock, then transaction.

Each is a wrapper of its own, with other decorators in between as the site likes. What one has to
know of the other is kept with the request: the lock above waits for the place where the request
is deduplicated, and what is recorded goes into the transaction that the lock below opens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from django.http import HttpRequest

if TYPE_CHECKING:
    from redlock_django.web.options import LockOptions

_ATTRIBUTE = "_redlock_nesting"


class Recorder(Protocol):
    """Writes down that a view runs, and what it answered."""

    database: str | None
    """The alias whose transaction the view has to run in; None for none in particular."""

    def begin(self, aliases: Sequence[str]) -> None:
        """Called right before the view, inside the transactions of these aliases."""

    def finish(self, response: Any) -> None:
        """Called with the view's rendered response, before COMMIT."""

    def committed(self) -> None:
        """Called after COMMIT, or where there was none to come, after `finish`."""

    async def abegin(self) -> None:
        """As `begin`, before an async view, which has no transaction."""

    async def afinish(self, response: Any) -> None:
        """As `finish`, after an async view."""


class Nesting:
    """What the decorators of one request have to tell each other."""

    def __init__(self) -> None:
        self.deduping = False
        self._recorder: Recorder | None = None
        self._lock: LockOptions | None = None

    @staticmethod
    def of(request: HttpRequest) -> Nesting:
        """Give that of a request, made when first asked for.

        A framework's request around Django's is the same request.
        """
        request = getattr(request, "_request", request)
        nesting: Nesting | None = getattr(request, _ATTRIBUTE, None)
        if nesting is None:
            nesting = Nesting()
            setattr(request, _ATTRIBUTE, nesting)
        return nesting

    def record_with(self, recorder: Recorder | None) -> None:
        """Let the next call of a view be recorded."""
        self._recorder = recorder

    def take_recorder(self) -> Recorder | None:
        """Give the recorder to the one call that it is for."""
        recorder, self._recorder = self._recorder, None
        return recorder

    def defer(self, lock: LockOptions) -> None:
        """Let a lock be taken where the request is deduplicated."""
        self._lock = lock

    def take_deferred(self) -> LockOptions | None:
        """Give the lock that was deferred."""
        lock, self._lock = self._lock, None
        return lock


def dedupes(view: Callable[..., Any] | None) -> bool:
    """Whether `@idempotent` is on a view, at whatever depth."""
    return getattr(view, "dedupes", False) is True


def opens_transaction(view: Callable[..., Any]) -> bool:
    """Whether a lock is taken for the view, at whatever depth, and its transaction under it."""
    return hasattr(view, "lock_options") or getattr(view, "opens_transaction", False) is True
