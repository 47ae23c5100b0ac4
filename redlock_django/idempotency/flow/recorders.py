"""How a view is recorded: a sync one in its transaction, an async one before and after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import IdempotencyUnavailable, InvalidRedlock
from redlock_django.idempotency.key import Claim
from redlock_django.idempotency.messages import added_messages, dumps, is_in_cookie
from redlock_django.idempotency.protocol import ViewOutcome, view_outcome
from redlock_django.idempotency.records import RecordStore
from redlock_django.idempotency.response import StoredResponse
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.web.request_values import request_user
from redlock_django.web.transactions import view_name

if TYPE_CHECKING:
    from redlock_django.web.locked_view import Call

logger = logging.getLogger("redlock_django")

OutcomeOf = Callable[..., tuple[ViewOutcome, StoredResponse | None]]
"""`(response or None, undone=)`; returns what to record. See `ResponsePolicy.outcome_of`."""

AnswerTo = Callable[[Exception], Any]
"""Returns the client's answer to an exception that is not a failure, or None."""


class ViewTransaction:
    """The transaction of a request without a key: as with a key, and without a record.

    A client must not choose by a header whether the view has a transaction.
    """

    begun = False

    def __init__(self, database: str) -> None:
        self.database: str | None = database
        self._aliases: Sequence[str] = ()

    def begin(self, aliases: Sequence[str]) -> None:
        self._aliases = aliases

    def finish(self, response: HttpResponseBase) -> None:
        outcome = view_outcome(response.status_code, undone=True, storable=True)
        if outcome is ViewOutcome.NO_EFFECT:
            _roll_back(self._aliases)


class TransactionRecorder:
    """Writes the record in the view's own transaction: both are committed, or neither is."""

    begun = started = False

    def __init__(self, store: RecordStore, claim: Claim, outcome_of: OutcomeOf) -> None:
        self.database: str | None = store.alias
        self.claim = claim
        self._store = store
        self._outcome_of = outcome_of
        self._aliases: Sequence[str] = ()

    def begin(self, aliases: Sequence[str]) -> None:
        """Insert the record before anything else.

        If the lock failed, another request with the key waits here for this COMMIT.
        """
        self._aliases = aliases
        self._store.begin(self.claim)
        self.started = True

    def finish(self, response: HttpResponseBase) -> None:
        if transaction.get_rollback(using=self.database):
            return  # the view rolls back its transaction, and the record with it
        outcome, stored = self._outcome_of(response, undone=True)
        if outcome is ViewOutcome.NO_EFFECT:
            _roll_back(self._aliases)
        else:
            _complete(self._store, self.claim, response, stored)

    def answered(self) -> None:
        """Do nothing: the transaction has decided."""

    def failed(self, error: Exception, answer_to: AnswerTo) -> None:
        """Do nothing: the transaction has decided."""


class SeparateRecorder:
    """Writes "running" before an async view, and its outcome after it.

    If a later request finds "running" and the lock of the key is not held, then the first request
    was interrupted, and it may have taken effect.
    """

    database: str | None = None

    def __init__(self, store: RecordStore, claim: Claim, outcome_of: OutcomeOf) -> None:
        self.begun = False  # set before the record is written
        self.started = False
        self.claim = claim
        self._store = store
        self._outcome_of = outcome_of
        self._completed_by_view = False
        self._undone_by_view: Any = None
        self._is_recorded = False

    def begin(self, aliases: Sequence[str]) -> None:
        self._store.begin(self.claim)
        self.started = True

    def finish(self, response: HttpResponseBase) -> None:
        undone = response is self._undone_by_view
        outcome, stored = self._outcome_of(response, undone=undone)
        self._record(outcome, stored, response.status_code)

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
        outcome, stored = self._outcome_of(response, undone=True)
        self._completed_by_view = True
        if outcome is ViewOutcome.NO_EFFECT:
            self._undone_by_view = response  # a 5xx is rolled back, as in a sync view
            transaction.set_rollback(True, using=alias)
        else:
            _complete(self._store, self.claim, response, stored)

    def answered(self) -> None:
        """Record that the outcome is uncertain: a lock error ended the view after it had begun."""
        if self.started and not self._is_recorded:
            self._record(ViewOutcome.UNCERTAIN)

    def failed(self, error: Exception, answer_to: AnswerTo) -> None:
        """Record the outcome after the view has raised, with the answer to the exception if any."""
        if not self.started or self._is_recorded:
            return
        # A record that the view completed was in its transaction, which was rolled back.
        undone = self._completed_by_view
        response = None if undone else answer_to(error)
        outcome, stored = self._outcome_of(response, undone=undone)
        self._record(outcome, stored, getattr(response, "status_code", 0))

    def _record(
        self, outcome: ViewOutcome, stored: StoredResponse | None = None, status: int = 0
    ) -> None:
        self._is_recorded = True
        try:
            match outcome:
                case ViewOutcome.NO_EFFECT:
                    self._store.delete(self.claim)
                case ViewOutcome.UNCERTAIN:
                    self._store.mark_uncertain(self.claim.key_hash, self.claim.attempt)
                case _:
                    written = self._store.complete(self.claim, status, stored)
                    if not (written or self._completed_by_view):
                        logger.error(
                            "idempotency: record %s was deleted or replaced while its view ran",
                            self.claim.key_hash[:8],
                        )
        except IdempotencyUnavailable:
            # The response is correct. The state is still "running", and a retry that finds it marks
            # it uncertain.
            logger.error(
                "idempotency: record %s could not be completed and stays uncertain",
                self.claim.key_hash[:8],
            )


AnyRecorder = TransactionRecorder | SeparateRecorder


def _complete(
    store: RecordStore, claim: Claim, response: HttpResponseBase, stored: StoredResponse | None
) -> None:
    if not store.complete(claim, response.status_code, stored):
        raise IdempotencyUnavailable("the record of a running request was deleted")


def _roll_back(aliases: Sequence[str]) -> None:
    for alias in aliases:
        transaction.set_rollback(True, using=alias)


class ResponsePolicy:
    """Decides what is recorded of a view's response. It is made before the view is called."""

    def __init__(
        self, call: Call, options: IdempotentOptions, settings: IdempotencySettings
    ) -> None:
        self._call = call
        self._options = options
        self._settings = settings
        self._before = Caller.of(call)
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._added_before = added_messages(self._request)

    def outcome_of(
        self, response: Any, *, undone: bool
    ) -> tuple[ViewOutcome, StoredResponse | None]:
        """Return what to record of a response, or of None if the view failed.

        `undone` is that of `view_outcome`.
        """
        stored = None if response is None or self._is_private() else self._stored(response)
        outcome = view_outcome(
            None if response is None else response.status_code,
            undone=undone,
            storable=stored is not None,
        )
        return outcome, stored

    def _is_private(self) -> bool:
        """Return whether the response must not be replayed.

        A replay does not run the view, so it neither sets the cookie of a session nor checks a
        token.
        """
        after = Caller.of(self._call)
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
        largest = self._settings.max_response_bytes
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


class Caller(NamedTuple):
    """The caller of a view, as far as the view may change it: its session, user and token.

    `cookie` is what the session cookie of its response names.
    """

    cookie: object
    user: object
    auth: object

    @classmethod
    def of(cls, call: Call) -> Caller:
        """Return the caller at this moment."""
        request = getattr(call.request, "_request", call.request)
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
    user = request_user(request)
    if not getattr(user, "is_authenticated", False):
        return None
    return user.__class__, getattr(user, "pk", None)  # of a lazy user, the class of the real one
