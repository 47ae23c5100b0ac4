"""How a view is recorded: a sync one in its transaction, an async one before and after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.protocol import ViewOutcome, view_outcome
from redlock_django.idempotency.records import AlreadyRecorded, RecordStore, store_of
from redlock_django.idempotency.refusals import UNAVAILABLE
from redlock_django.idempotency.response import (
    StoredResponse,
    added_messages,
    dumps,
    is_in_cookie,
)
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.web.view_kinds import view_name

if TYPE_CHECKING:
    from redlock_django.idempotency.key import Claim
    from redlock_django.web.locked_view import Call

logger = logging.getLogger("redlock_django")

_EVERY = 20  # requests
_recorded = count(1)


class _ViewRecorder:
    """Both recorders: the record of a view's call, and what is stored of its response."""

    claim: Claim | None = None
    begun = started = False
    database: str | None = None

    def __init__(self, call: Call, options: IdempotentOptions) -> None:
        self._call = call
        self._options = options
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._store = store_of(options.settings())

    def _insert(self, claim: Claim, *, savepoint: bool) -> None:
        """Insert the record, and note what the view may change."""
        self._before = Caller.of(self._request)
        self._added_before = added_messages(self._request)
        self._store.begin(claim, savepoint=savepoint)
        self.started = True

    def _complete(self, claim: Claim, response: Any, stored: StoredResponse | None) -> None:
        if not self._store.complete(claim, response.status_code, stored):
            raise IdempotencyRefused(UNAVAILABLE, "the record of a running request was deleted")

    def _check_recordable(self, response: Any) -> None:
        """Raise InvalidRedlock for what is not a response yet: a framework makes it later."""
        if not isinstance(response, HttpResponseBase):
            raise InvalidRedlock(
                f"{view_name(self._call.view)} returned {type(response).__name__}, and "
                "@idempotent records an HttpResponse. Return a JsonResponse, for example; "
                "django-ninja passes it on"
            )

    def _outcome(self, response: Any, *, undone: bool) -> tuple[ViewOutcome, StoredResponse | None]:
        """Return what to record of a response; `undone` is that of `view_outcome`."""
        stored = None if self._is_private() else self._stored(response)
        storable = stored is not None
        return view_outcome(response.status_code, undone=undone, storable=storable), stored

    def _is_private(self) -> bool:
        """Return whether the response must not be replayed.

        A replay does not run the view, so it neither sets the cookie of a session nor checks a
        token.
        """
        after = Caller.of(self._request)
        if after.cookie != self._before.cookie:  # such as that of a login
            return True
        if self._options.replay_check is not None or after == self._before:
            return False
        logger.warning(
            "idempotency: the response of %s is not stored, because request.user or request.auth "
            "was set inside of @idempotent, and a replay would skip that. Put @idempotent below "
            "what authenticates the client, or pass replay_check=",
            view_name(self._call.view),
        )
        return True

    def _stored(self, response: Any) -> StoredResponse | None:
        redact = self._options.redact
        largest = self._options.settings().max_response_bytes
        stored = StoredResponse.of(response, largest=largest, messages=self._messages())
        if stored is None:
            return None
        forbidden = "no-store" in response.get("Cache-Control", "").lower()
        # `redact` would find nothing in a compressed body, which would be stored whole.
        unreadable = redact is not None and stored.is_encoded
        if forbidden or unreadable:
            return stored.without_body()
        if redact is None:
            return stored
        body = redact(self._call.request, stored.body)
        if not isinstance(body, bytes):
            kind = type(body).__name__
            raise InvalidRedlock(f"idempotent(): redact must return bytes, got {kind}")
        return stored.with_body(body)

    def _messages(self) -> str:
        """Return what the view has added to Django's messages, and not shown itself."""
        before = {id(message) for message in self._added_before}
        return dumps(one for one in added_messages(self._request) if id(one) not in before)


class TransactionRecorder(_ViewRecorder):
    """Writes the record in the view's own transaction: both are committed, or neither is.

    A request without a key has the same transaction, and no `claim`: a client must not choose by a
    header whether the view has a transaction.
    """

    def __init__(self, call: Call, options: IdempotentOptions) -> None:
        super().__init__(call, options)
        self.database = self._store.alias

    def begin(self, aliases: Sequence[str]) -> None:
        """Insert the record before anything else.

        If the lock failed, another request with the key waits here for this COMMIT.
        """
        self._aliases = aliases
        if self.claim is not None:
            self._insert(self.claim, savepoint=False)

    def finish(self, response: Any) -> None:
        """Complete the record, or roll back what the view did before it failed."""
        self._check_recordable(response)
        if transaction.get_rollback(using=self.database):
            return  # the view rolls back its transaction, and the record with it
        stored = None
        if self.claim is None:
            outcome = view_outcome(response.status_code, undone=True, storable=True)
        else:
            outcome, stored = self._outcome(response, undone=True)
        if outcome is ViewOutcome.NO_EFFECT:
            for alias in self._aliases:
                transaction.set_rollback(True, using=alias)
        elif self.claim is not None:
            self._complete(self.claim, response, stored)


class SeparateRecorder(_ViewRecorder):
    """Writes "running" before an async view, and its outcome after it.

    If a later request finds "running" and the lock of the key is not held, then the first request
    was interrupted, and it may have taken effect.
    """

    claim: Claim
    is_completed_by_view = False
    _undone_by_view: Any = None
    _is_recorded = False

    def begin(self, aliases: Sequence[str]) -> None:
        """Insert the record; of an async view, `aliases` is empty."""
        # A middleware may have opened a transaction, which a key that another request has recorded
        # meanwhile must not break.
        self._insert(self.claim, savepoint=True)

    @property
    def is_unfinished(self) -> bool:
        """True if the record says "running"."""
        return self.started and not self._is_recorded

    def complete(self, response: Any) -> None:
        """Record the response in the transaction that the view itself has opened."""
        alias = self._store.alias
        if not connections[alias].in_atomic_block:
            raise InvalidRedlock(
                "request.idempotency.complete() must be called inside transaction.atomic() of "
                f"database {alias!r}"
            )
        if callable(render := getattr(response, "render", None)) and not response.is_rendered:
            response = render()
        outcome, stored = self._outcome(response, undone=True)
        self.is_completed_by_view = True
        if outcome is ViewOutcome.NO_EFFECT:
            self._undone_by_view = response  # a 5xx is rolled back, as in a sync view
            transaction.set_rollback(True, using=alias)
        else:
            self._complete(self.claim, response, stored)

    def finish(self, response: Any) -> None:
        """Record the response of the view, or the answer to its error."""
        self._check_recordable(response)
        undone = response is self._undone_by_view
        outcome, stored = self._outcome(response, undone=undone)
        self.record(outcome, stored, response.status_code)
        forget_some(self._store)

    def finish_failed(self, answer: HttpResponseBase) -> None:
        """Record the answer to an error of the view. It never raises: the answer is correct."""
        try:
            self.finish(answer)
        except Exception:  # of `redact`, which may expect another kind of body
            logger.exception(
                "idempotency: the answer to an error of %s could not be recorded",
                view_name(self._call.view),
            )
            self.record(ViewOutcome.UNCERTAIN)

    def record(
        self, outcome: ViewOutcome, stored: StoredResponse | None = None, status: int = 0
    ) -> None:
        """Record the outcome. It never raises: the response of the view is correct."""
        claim, self._is_recorded = self.claim, True
        try:
            match outcome:
                case ViewOutcome.NO_EFFECT:
                    self._store.delete(claim)
                case ViewOutcome.UNCERTAIN:
                    self._store.mark_uncertain(claim.key_hash, claim.attempt)
                case _:
                    written = self._store.complete(claim, status, stored)
                    if not (written or self.is_completed_by_view):
                        logger.error(
                            "idempotency: record %s was deleted or replaced while its view ran",
                            claim.key_hash[:8],
                        )
        except (IdempotencyRefused, AlreadyRecorded):
            # The state is still "running", and a retry that finds it marks it uncertain.
            logger.error(
                "idempotency: record %s could not be completed and stays uncertain",
                claim.key_hash[:8],
            )


def forget_some(store: RecordStore) -> None:
    """Empty old records, once in some requests: so responses end even if nothing is purged."""
    if next(_recorded) % _EVERY == 0:
        store.forget_expired_responses()


class Caller(NamedTuple):
    """The caller of a view, as far as the view may change it: its session, user and token.

    `cookie` is what the session cookie of its response names.
    """

    cookie: object
    user: object
    auth: object

    @classmethod
    def of(cls, request: HttpRequest) -> Caller:
        """Return the caller at this moment."""
        # REST framework and django-ninja set `auth`.
        return cls(_session_cookie(request), _user(request), getattr(request, "auth", None))


def _session_cookie(request: HttpRequest) -> object:
    session: Any = getattr(request, "session", None)
    key = getattr(session, "session_key", None)
    if key is not None and not is_in_cookie(session):
        return key, False
    # The response will have a cookie of a new session, or one with the new data.
    return key, getattr(session, "modified", False) and not session.is_empty()


def _user(request: HttpRequest) -> object:
    user = getattr(request, "user", None)
    if not getattr(user, "is_authenticated", False):
        return None
    return user.__class__, getattr(user, "pk", None)  # of a lazy user, the class of the real one
