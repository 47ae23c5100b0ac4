"""One request of an idempotent view, from its key to its response.

The sequence is written once for sync and async views, as a generator of steps. `protocol` makes
the decisions, and `runner` performs the steps.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import count
from typing import Any

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
    TooManyWaiters,
)
from redlock_django.idempotency.flow.claim import ClaimReader
from redlock_django.idempotency.flow.current import Idempotency, attach
from redlock_django.idempotency.flow.exception_answers import answer_to
from redlock_django.idempotency.flow.recorders import (
    AnyRecorder,
    ResponsePolicy,
    SeparateRecorder,
    TransactionRecorder,
    ViewTransaction,
)
from redlock_django.idempotency.flow.runner import (
    CallHook,
    HoldLock,
    InThread,
    Runner,
    RunView,
    Steps,
)
from redlock_django.idempotency.key import Claim, lock_name
from redlock_django.idempotency.messages import add_again
from redlock_django.idempotency.placement import (
    check_lock_of_handler,
    check_not_excluded,
    check_permissions,
)
from redlock_django.idempotency.protocol import Action, Decision, KeyLock, decide
from redlock_django.idempotency.records import DATABASE_ERRORS, AlreadyRecorded, Record, RecordStore
from redlock_django.idempotency.response import StoredResponse
from redlock_django.idempotency.settings import IdempotentOptions, store_of
from redlock_django.locking.reports import counters
from redlock_django.locking.transactions.open_transactions import open_blocks
from redlock_django.signals import request_replayed, send
from redlock_django.web.disconnects import finish_without_client
from redlock_django.web.locked_view import Call
from redlock_django.web.options import (
    has_pools,
    no_lock,
    return_pooled_connections,
    waiting_thread,
)
from redlock_django.web.request_state import current_page, forbid_caching
from redlock_django.web.transactions import transaction_marker

logger = logging.getLogger("redlock_django")

_EVERY = 20  # requests
_recorded = count(1)

_COUNTERS: dict[type[IdempotencyRefused], str] = {
    KeyInFlight: "conflicted",
    TooManyWaiters: "conflicted",
    KeyReused: "mismatched",
    OutcomeUncertain: "uncertain",
}
"""The counters of requests that are refused because of an earlier request with their key."""


def sync_view(view: Callable[..., Any], options: IdempotentOptions) -> Any:
    """Return the idempotent wrapper of a sync view."""
    marker = transaction_marker(view)
    inner = no_lock(options.using)

    @functools.wraps(view)
    def run_once(*args: Any, **kwargs: Any) -> Any:
        call = Call(view, inner, args, kwargs, marker)
        check_permissions(call, options)
        if call.state.recording:  # an idempotent view calls another one within the same request
            return view(*args, **kwargs)
        attempt = IdempotentAttempt(call, options, is_async=call.is_async)
        return attempt.arun() if call.is_async else attempt.run()

    run_once._non_atomic_requests = marker  # type: ignore[attr-defined]
    return run_once


def async_view(view: Callable[..., Any], options: IdempotentOptions) -> Any:
    """Return the idempotent wrapper of an async view."""

    # No transaction marker: Django must still raise its error about ATOMIC_REQUESTS here.
    inner = no_lock(options.using)

    @functools.wraps(view)
    async def run_once(*args: Any, **kwargs: Any) -> Any:
        call = Call(view, inner, args, kwargs)
        check_permissions(call, options)
        if call.state.recording:  # as in a sync view
            return await view(*args, **kwargs)
        return await IdempotentAttempt(call, options, is_async=True).arun()

    return run_once


class IdempotentAttempt:
    """One request of an idempotent view, which may have been sent before.

    While the view runs, no frame has the key in a local variable: error reports would show it.
    """

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self._call = call
        self._options = options
        self._settings = options.settings()
        self._is_async = is_async
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._reader = ClaimReader(call, options, self._settings, is_async)
        self._no_quorum: StoreUnavailable | None = None

    @cached_property
    def _store(self) -> RecordStore:
        return store_of(self._settings)

    def run(self) -> Any:
        """Return the response of a sync view, or the one that is recorded."""
        return Runner(self._call, self._options).run(self.steps())

    async def arun(self) -> Any:
        """Return the response of an async view, or the one that is recorded."""
        runner = Runner(self._call, self._options)
        response = runner.arun(self.steps())
        if self._options.may_have_key(self._request):
            return await finish_without_client(response, runner.has_begun)
        return await response

    def steps(self) -> Steps:
        """Yield the steps from the request to its response, and return the response.

        Raises an IdempotencyRefused if the request is refused.
        """
        settings, request = self._settings, self._request
        if not self._is_async and request.method in settings.methods:
            # Also without a key: a client must not choose by a header whether the view fails.
            check_not_excluded(self._call.view, self._call.marker, self._options)
        claim = yield from self._reader.claim()
        if claim is None:
            response = yield from self._run_without_key()
            if settings.sent_header(request) is not None or self._reader.from_form:
                _set_header(response, "Idempotency-Status", "ignored")
            return response
        response = yield from self._run_once(claim)
        _set_header(response, "Idempotency-Key-Lifetime", str(int(settings.retention)))
        if (sent := settings.sent_header(request)) is not None:
            is_key = self._options.reads_header
            name, value = (settings.header, sent) if is_key else ("Idempotency-Status", "ignored")
            _set_header(response, name, value)
        return response

    def _run_without_key(self) -> Steps:
        attach(self._request, Idempotency(), self._options.using)
        outer = current_page.get()
        current_page.set(self._request)
        try:
            response = yield RunView(self._transaction_without_key())
        finally:
            current_page.set(outer)
        forbid_caching(self._call.state, response)
        return response

    def _transaction_without_key(self) -> ViewTransaction | None:
        """Return the transaction that this request would have with a key, or None for none."""
        settings = self._settings
        if self._is_async or self._request.method not in settings.methods or open_blocks():
            return None
        return ViewTransaction(settings.database)

    def _run_once(self, claim: Claim) -> Steps:
        """Run the view, or replay or refuse the request, as `decide` decides."""
        record = yield from self._find(claim)
        action = self._decide(record, KeyLock.NOT_TRIED)
        if action is Action.LOCK:
            state = yield from self._lock(claim, 0)
            if claim.wait is not None and state is KeyLock.BUSY:
                # The first attempt does not wait. A waiter would also wait for masters that are
                # down, and then the client should be refused at once.
                state = yield from self._wait(claim)
            # The INSERT fails if there is a record under the same secret, but not under another.
            is_stale = claim.wait is not None or record is not None or len(claim.hashes) > 1
            if state is KeyLock.HELD and is_stale:
                record = yield from self._find(claim)
            action = self._decide(record, state)
        if action is Action.RUN:
            response = yield from self._run_first(self._recorder(claim))
            if response is not None:
                return response
            record = yield from self._find(claim)
            action = self._decide(record, KeyLock.BUSY)
        return (yield from self._answer_without_view(action, record))

    def _find(self, claim: Claim) -> Steps:
        return (yield InThread(partial(self._store.find, claim)))

    def _decide(self, record: Record | None, lock: KeyLock) -> Decision:
        status = None if record is None else record.status
        return decide(status, lock)

    def _lock(self, claim: Claim, wait: float) -> Steps:
        # A name with a fingerprint is locked while the same request runs, a name without one while
        # any request with the key runs. Another process may still use an older SECRET_KEY.
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
            self._no_quorum = error
            return KeyLock.NO_QUORUM
        return KeyLock.HELD

    def _wait(self, claim: Claim) -> Steps:
        """Wait until the first request with the key is over."""
        # An async view occupies no thread while it waits.
        counted = nullcontext(True) if self._is_async else waiting_thread(self._options.using)
        with counted as may_wait:
            if not may_wait:
                raise self._refused(TooManyWaiters())
            if has_pools():
                yield InThread(return_pooled_connections)
            return (yield from self._lock(claim, self._settings.wait))

    def _recorder(self, claim: Claim) -> AnyRecorder:
        policy = ResponsePolicy(self._call, self._options, self._settings)
        if not self._is_async:
            return TransactionRecorder(self._store, claim, policy.outcome_of)
        check_lock_of_handler(self._call)
        return SeparateRecorder(self._store, claim, policy.outcome_of)

    def _run_first(self, recorder: AnyRecorder) -> Steps:
        """Run the view and return its response; None if another request recorded the key first."""
        complete = recorder.complete if isinstance(recorder, SeparateRecorder) else None
        current = Idempotency(recorder.claim.key_hash, self._reader.seed, complete)
        attach(self._request, current, self._options.using)
        try:
            response = yield RunView(recorder)
        except AlreadyRecorded:
            return None
        except Exception as error:
            if not recorder.started and isinstance(error, DATABASE_ERRORS):
                raise IdempotencyUnavailable from error  # BEGIN failed, for example
            answer = partial(answer_to, self._call)
            yield InThread(partial(recorder.failed, error, answer))
            raise
        if recorder.started:
            yield InThread(recorder.answered)
            if next(_recorded) % _EVERY == 0:
                # Responses end with their retention even if the records are never purged.
                yield InThread(self._store.forget_expired_responses)
            _set_header(response, "Idempotent-Replayed", "false")
        return response

    def _answer_without_view(self, action: Decision, record: Record | None) -> Steps:
        """Replay or refuse the request."""
        if isinstance(action, type):
            refused = action()
            if self._no_quorum is not None:
                refused.retry_after = self._no_quorum.retry_after
                refused.remedy = self._no_quorum.remedy
            raise self._refused(refused)
        match action:
            case Action.REPLAY if record is not None and record.response is not None:
                return (yield from self._replay(record.key_hash, record.response))
            case Action.MARK_UNCERTAIN if record is not None:
                yield from self._mark_uncertain(record)
        raise IdempotencyUnavailable  # the record has been deleted in the meantime

    def _mark_uncertain(self, record: Record) -> Steps:
        """Record that the outcome is uncertain, and refuse the request."""
        try:
            yield InThread(partial(self._store.mark_uncertain, record.key_hash, record.attempt))
        except AlreadyRecorded:
            # The view is about to complete the record in a transaction of its own.
            raise self._refused(KeyInFlight()) from None
        logger.error("idempotency: the outcome of record %s is uncertain", record.key_hash[:8])
        raise self._refused(OutcomeUncertain())

    def _replay(self, key_hash: str, stored: StoredResponse) -> Steps:
        replay_check = self._options.replay_check
        if replay_check is not None and not (yield CallHook(replay_check)):
            raise PermissionDenied
        response = stored.replay()
        if stored.messages:
            yield InThread(partial(add_again, self._request, stored.messages))
        counters.count(self._options.using, "replayed")
        send(
            request_replayed,
            sender=Idempotency,
            using=self._options.using,
            request=self._request,
            key_hash=key_hash,
            response=response,
        )
        return response

    def _refused(self, error: IdempotencyRefused) -> IdempotencyRefused:
        """Count a refusal, and return its error to raise."""
        if name := _COUNTERS.get(type(error)):
            counters.count(self._options.using, name)
        return error


def _set_header(response: Any, name: str, value: str) -> None:
    # If a view returns anything else, Django raises an error later.
    if isinstance(response, HttpResponseBase):
        response[name] = value
