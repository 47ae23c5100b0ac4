"""One request of an idempotent view, from its key to its response.

The sequence is written once for sync and async views, as a generator of steps. `protocol` makes
the decisions, and `runner` performs the steps.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from datetime import timedelta
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import (
    AlreadyHeld,
    IdempotencyRefused,
    IdempotencyUnavailable,
    KeyInFlight,
    KeyReused,
    OutcomeUncertain,
    ResourceLocked,
    StoreUnavailable,
    TooManyRecords,
    TooManyWaiters,
)
from redlock_django.idempotency.flow.claim import ClaimReader
from redlock_django.idempotency.flow.current import Idempotency, add_key_field
from redlock_django.idempotency.flow.exception_answers import answer_to
from redlock_django.idempotency.flow.recorders import (
    AnyRecorder,
    Caller,
    SeparateRecorder,
    TransactionRecorder,
    UnrecordedTransaction,
    outcome_of,
    response_is_private,
)
from redlock_django.idempotency.flow.steps import CallHook, HoldLock, InThread, RunView, Steps
from redlock_django.idempotency.key import Claim, lock_name
from redlock_django.idempotency.protocol import Action, Decision, KeyLock, decide
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions, store_of
from redlock_django.idempotency.stores.base import AlreadyRecorded, Record, Store
from redlock_django.idempotency.stores.database import DATABASE_ERRORS, DatabaseStore
from redlock_django.locking.counters import counters
from redlock_django.locking.transactions.open_transactions import open_blocks
from redlock_django.signals import request_replayed, send
from redlock_django.web.options import has_pools, return_pooled_connections, waiting_thread
from redlock_django.web.request_state import PageInProgress, forbid_caching

if TYPE_CHECKING:
    from redlock_django.web.call import Call

_EVERY = 20  # requests
_recorded = count(1)

logger = logging.getLogger("redlock_django")


class IdempotentAttempt:
    """One request of an idempotent view, which may have been sent before.

    The key is a local variable of no frame that exists while the view runs, because error reports
    show the variables of frames.
    """

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self.call = call
        self._options = options
        self._is_async = is_async
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._reader = ClaimReader(call, options, is_async=is_async)
        self._retry_after: float | None = None
        self._remedy = ""

    @cached_property
    def _settings(self) -> IdempotencySettings:
        return self._options.settings()

    @property
    def finishes_without_client(self) -> bool:
        """True if an async view must run to its end, although its client disconnects."""
        return self._reader.may_have_key and self._settings.on_disconnect == "finish"

    def steps(self) -> Steps:
        """Yield the steps from the request to its response, and return the response.

        Raises an IdempotencyRefused if the request is refused.
        """
        header = self._settings.header
        claim = yield from self._reader.claim()
        if claim is None:
            self._request.idempotency = Idempotency()  # type: ignore[attr-defined]
            add_key_field(self._request, self._options.using)
            with PageInProgress(self._request):
                response = yield RunView(self._unrecorded_transaction())
            forbid_caching(self.call.state, response)
            if header in self._request.headers or self._reader.from_form:
                _set_header(response, "Idempotency-Status", "ignored")
            return response
        response = yield from self._run_once(claim)
        _set_header(response, "Idempotency-Key-Lifetime", str(int(self._settings.retention)))
        if not self._reader.from_form:
            _set_header(response, header, self._request.headers[header])
        return response

    def _run_once(self, claim: Claim) -> Steps:
        """Run the view, or replay or refuse the request, as `decide` decides."""
        store = store_of(self._settings)
        record: Record | None = yield InThread(partial(store.find, claim))
        action = self._decide(record, KeyLock.NOT_TRIED)
        if action is Action.LOCK:
            state = yield from self._lock(claim, 0)
            if claim.wait is not None and state is KeyLock.BUSY:
                # The first attempt does not wait. A waiter would also wait for masters that are
                # down, and then the client should be refused at once.
                state = yield from self._wait(claim)
            # A record under another secret is not in the way of the INSERT.
            is_stale = claim.wait is not None or record is not None or len(claim.hashes) > 1
            if state is KeyLock.HELD and is_stale:
                record = yield InThread(partial(store.find, claim))
            action = self._decide(record, state)
        if action is Action.RUN:
            yield from self._admit(store, claim)
            response = yield from self._first(self._recorder(store, claim, instead_of=record))
            if response is not None:
                return response
            record = yield InThread(partial(store.find, claim))
            action = self._decide(record, KeyLock.BUSY)
        return (yield from self._without_view(action, store, record))

    def _lock(self, claim: Claim, wait: float) -> Steps:
        # The names with a fingerprint are held only while the very same request runs; the others
        # while any request with this key runs, in a process with an older SECRET_KEY too.
        names = [lock_name(each.key_hash) for each in claim.hashes]
        exact = [
            f"{name}~{each.fingerprint[:32]}"
            for name, each in zip(names, claim.hashes, strict=True)
        ]
        try:
            yield HoldLock((*exact, *names), wait)
        except AlreadyHeld:
            return KeyLock.BUSY
        except ResourceLocked as error:
            same = set(exact).intersection(error.resources)
            return KeyLock.BUSY if same else KeyLock.BUSY_OTHERWISE
        except StoreUnavailable as error:
            logger.warning("idempotency: request refused, there is no quorum: %s", error)
            self._retry_after, self._remedy = error.retry_after, error.remedy
            return KeyLock.NO_QUORUM
        return KeyLock.HELD

    def _wait(self, claim: Claim) -> Steps:
        """Wait until the first request with the key is over."""
        using = self._options.using
        # An async view waits in no thread.
        counted = nullcontext(True) if self._is_async else waiting_thread(using)
        with counted as may_wait:
            if not may_wait:
                count_refusal(using, TooManyWaiters)
                raise TooManyWaiters
            if has_pools():
                yield InThread(return_pooled_connections)
            return (yield from self._lock(claim, self._settings.wait))

    def _admit(self, store: Store, claim: Claim) -> Steps:
        """Raise TooManyRecords if the owner of the key has used too many keys lately."""
        if (most := self._settings.max_records) is None:
            return
        window = timedelta(seconds=self._settings.max_records_window)
        seconds = yield InThread(partial(store.admit, claim, most=most, window=window))
        if seconds:
            count_refusal(self._options.using, TooManyRecords)
            raise TooManyRecords(retry_after=seconds)

    def _first(self, recorder: AnyRecorder) -> Steps:
        """Run the view and return its response; None if another request recorded the key first."""
        complete = recorder.complete if self._is_async else None
        current = Idempotency(recorder.claim.key_hash, self._reader.seed, complete)
        self._request.idempotency = current  # type: ignore[attr-defined]
        add_key_field(self._request, self._options.using)
        try:
            response = yield RunView(recorder)
        except AlreadyRecorded:
            return None
        except Exception as error:
            if not recorder.started and isinstance(error, DATABASE_ERRORS):
                raise IdempotencyUnavailable from error  # BEGIN failed, for example
            response = yield InThread(partial(recorder.failed, error, self._answer_to))
            if response is None or not self.call.wrapped:
                raise
        if recorder.started:
            yield InThread(partial(recorder.answered, response))
            if next(_recorded) % _EVERY == 0:
                # So that responses end with their retention, although nobody purges the records.
                yield InThread(store_of(self._settings).forget_expired_responses)
            _set_header(response, "Idempotent-Replayed", "false")
        return response

    def _without_view(self, action: Decision, store: Store, record: Record | None) -> Steps:
        """Replay or refuse the request."""
        if isinstance(action, type):
            count_refusal(self._options.using, action)
            refused = action(retry_after=self._retry_after)
            refused.remedy = self._remedy
            raise refused
        if record is None or action not in (Action.REPLAY, Action.MARK_UNCERTAIN):
            raise IdempotencyUnavailable  # the record has been deleted in the meantime
        if action is Action.MARK_UNCERTAIN:
            try:
                yield InThread(partial(store.mark_uncertain, record.key_hash, record.attempt))
            except AlreadyRecorded:
                # The view is about to complete the record in a transaction of its own.
                count_refusal(self._options.using, KeyInFlight)
                raise KeyInFlight from None
            # The whole hash, because a record in a cache is found only by its whole hash.
            logger.error("idempotency: the outcome of record %s is uncertain", record.key_hash)
            count_refusal(self._options.using, OutcomeUncertain)
            raise OutcomeUncertain
        replay_check = self._options.replay_check
        if replay_check is not None and not (yield CallHook(replay_check)):
            raise PermissionDenied
        response = record.replay()
        count_replay(
            self._options.using,
            sender=Idempotency,
            request=self._request,
            key_hash=record.key_hash,
            response=response,
        )
        return response

    def _decide(self, record: Record | None, lock: KeyLock) -> Decision:
        status = None if record is None else record.status
        return decide(status, lock, rerun_expired=self._settings.on_expired == "run")

    def _answer_to(self, error: Exception) -> Any:
        return answer_to(self.call, error)

    def _unrecorded_transaction(self) -> UnrecordedTransaction | None:
        """Return the transaction that this request would have with a key, or None for none."""
        settings = self._settings
        if self._is_async or settings.store != "database":
            return None
        if self._request.method not in settings.methods or open_blocks():
            return None
        marker = self.call.marker
        if marker is not None and marker.excludes(settings.database):
            return None
        return UnrecordedTransaction(settings.database, keep_5xx=settings.on_5xx == "record")

    def _recorder(self, store: Store, claim: Claim, instead_of: Record | None) -> AnyRecorder:
        redact = self._options.redact
        outcome = partial(
            outcome_of,
            self._settings,
            is_private=partial(
                response_is_private,
                self.call,
                Caller.of(self.call),
                has_replay_check=self._options.replay_check is not None,
            ),
            redact=None if redact is None else partial(redact, self.call.request),
        )
        if isinstance(store, DatabaseStore) and not self._is_async:
            return TransactionRecorder(store, claim, outcome, instead_of)
        return SeparateRecorder(store, claim, outcome, instead_of)


def _set_header(response: Any, name: str, value: str) -> None:
    # A view may return something else, about which Django raises an error later.
    if isinstance(response, HttpResponseBase):
        response[name] = value


_COUNTERS: dict[type[IdempotencyRefused], str] = {
    KeyInFlight: "conflicted",
    TooManyWaiters: "conflicted",
    KeyReused: "mismatched",
    OutcomeUncertain: "uncertain",
}


def count_replay(using: str, *, sender: type, **details: Any) -> None:
    """Count and signal a request that was answered from a record."""
    counters.count(using, "replayed")
    send(request_replayed, sender=sender, using=using, **details)


def count_refusal(using: str, error_class: type[IdempotencyRefused]) -> None:
    """Count a request that was refused because of an earlier request with its key."""
    if name := _COUNTERS.get(error_class):
        counters.count(using, name)
