"""One request of an idempotent view: its key, its record, the lock of its key, its response."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import (
    BadResource,
    IdempotencyRefused,
    InvalidRedlock,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.idempotency.fingerprint import read_for_view, request_fingerprint
from redlock_django.idempotency.key import (
    LONGEST,
    Claim,
    Idempotency,
    InFlightLock,
    attach,
    host_of,
    parse_key,
    provider_scope,
    request_hashes,
    scope_of,
    seed_of,
    user_of,
)
from redlock_django.idempotency.placement import (
    check_lock_of_handler,
    check_middleware,
    check_not_excluded,
    check_other_views,
    check_placement,
)
from redlock_django.idempotency.protocol import Action, Decision, KeyLock, decide
from redlock_django.idempotency.recorder import SeparateRecorder, TransactionRecorder, forget_some
from redlock_django.idempotency.records import DATABASE_ERRORS, AlreadyRecorded, Record, store_of
from redlock_django.idempotency.refusals import (
    COUNTERS,
    KEY_IN_FLIGHT,
    KEY_INVALID,
    KEY_MISSING,
    KEY_UNSCOPED,
    OUTCOME_UNCERTAIN,
    UNAVAILABLE,
)
from redlock_django.idempotency.response import StoredResponse, add_again
from redlock_django.idempotency.settings import IdempotentOptions, KeySource
from redlock_django.locking import reports
from redlock_django.locking.caller import open_blocks
from redlock_django.web.answers import Problem
from redlock_django.web.locked_view import Call
from redlock_django.web.misplaced_locks import idempotent_below_error
from redlock_django.web.request import (
    check_body_is_complete,
    forbid_caching,
    request_value,
    user_of_async_view,
)
from redlock_django.web.view_kinds import opens_transaction, view_name

logger = logging.getLogger("redlock_django")


class KeyedRequest:
    """One request of an idempotent view, and what is done with it.

    While the view runs, no frame has the key in a local variable: error reports would show it.
    Nothing here awaits: an async view calls in threads what uses the database or calls the site.
    `claim` is None for a request without a key, `key_lock` the lock of the key once it was tried.
    """

    claim: Claim | None = None
    key_lock: InFlightLock | None = None
    _seed = b""
    _from_form = False
    _is_first = False
    _record: Record | None = None
    _waited = False
    _no_quorum: StoreUnavailable | None = None

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self.call = call
        self.options = options
        self._is_async = is_async
        self._settings = options.settings()
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        if call.state.is_locked:
            raise idempotent_below_error(call.view)
        self._may_be_recorded = self._request.method in self._settings.methods
        if self._may_be_recorded:
            # Also without a key: a client must not choose by a header whether the view fails.
            if is_async:
                check_middleware(call)
            else:
                check_not_excluded(call.view, call.marker, options)

    @cached_property
    def may_have_key(self) -> bool:
        """True unless it is known at once that the request has no key."""
        return self.options.may_have_key(self._request)

    def look_up(self) -> Decision | None:
        """Look for the record of the key; return what to do, or None without a key."""
        key = self._key()
        if key is None:
            return None
        check_placement(self.call, self._settings, is_async=self._is_async)
        self.claim = self._claim_of(key)
        self.find()
        check_other_views(self.call, self.claim.key_hash, found=self._record is not None)
        return self.decide(KeyLock.NOT_TRIED)

    # The key and its owner.

    def _key(self) -> str | None:
        """Return the key of the request; None without one, where the view requires none."""
        key = self._sent_key() if self.may_have_key else None
        if key is None and self._settings.required and self._may_be_recorded:
            if self.options.key is not None:
                self._log_refusal("it has no key")
            raise IdempotencyRefused(KEY_MISSING)
        return key

    def _sent_key(self) -> str | None:
        """Return the key where `key=` says, in the header or in the form, or None."""
        if (place := self.options.key) is not None:
            return self._given_key(place)
        sent = self._settings.sent_header(self._request)
        if sent is None:
            sent = self._settings.key_in_form(self._request)
            check_body_is_complete(self._request)  # the field may be in the part that is missing
            self._from_form = sent is not None
        return None if sent is None else parse_key(sent)

    def _given_key(self, place: KeySource | Callable[..., Any]) -> str | None:
        """Return the key that a sender puts into its request as it is, such as an event's id."""
        read_for_view(self._request)
        check_body_is_complete(self._request)
        fault = "the value is empty, too long or not printable"
        try:
            if isinstance(place, KeySource):
                key: Any = request_value(self._request, *place)
            else:
                key = self._hook(place)
        except BadResource as error:
            key, fault = "", str(error)
        if key is not None and not isinstance(key, str):
            raise InvalidRedlock(
                f"idempotent(): key {getattr(place, '__qualname__', place)!r} must return a "
                f"string, or None for a request without a key, got {type(key).__name__}"
            )
        if key is None or (key.strip() and len(key) <= LONGEST and key.isprintable()):
            return key
        self._log_refusal(fault)
        raise IdempotencyRefused(KEY_INVALID)

    def _log_refusal(self, reason: str) -> None:
        # The sender of an event seldom shows its answer to those who operate the site.
        name, key = view_name(self.call.view), self.options.key
        place = str(key) if isinstance(key, KeySource) else "its key"
        logger.warning("idempotency: %s refused a request for %s: %s", name, place, reason)

    def _claim_of(self, key: str) -> Claim:
        request, settings = self._request, self._settings
        # With a scope, too: the recorder compares the user, who must be loaded in a thread.
        sender = self.call.request
        user_now = user_of_async_view(sender) if self._is_async else getattr(sender, "user", None)
        user = user_of(user_now) if self.options.scope is None else None
        scope = self._scope(user)
        if scope is None:
            logger.warning(
                "idempotency: %s refused an anonymous request with a key. Pass anonymous_scope= to "
                "@idempotent, or scope= for a webhook",
                view_name(self.call.view),
            )
            raise IdempotencyRefused(KEY_UNSCOPED)
        self._seed = seed_of(scope, key)
        # An event stays the same event in another body.
        path_only = self.options.scope is not None
        fingerprint = request_fingerprint(request, key_field=settings.field, path_only=path_only)
        return Claim(
            hashes=request_hashes(scope, key, fingerprint),
            user="" if user is None else user.pk.replace("\0", "%00"),  # PostgreSQL stores no NUL
            method=request.method or "",
            path=request.path.replace("\0", "%00"),
            retention=timedelta(seconds=settings.retention),
            wait=self.options.wait(from_form=self._from_form),
        )

    def _scope(self, user: Any) -> str | None:
        """Return the owner of the key, or None without one."""
        if (scope := self.options.scope) is not None:
            name = self._hook(scope) if callable(scope) else scope
            return None if name in (None, "") else provider_scope(name, self._tenant())
        anonymous = None
        if user is None and self.options.anonymous_scope is not None:
            anonymous = self._hook(self.options.anonymous_scope)
            if anonymous in (None, ""):
                return None  # such as a header that the client did not send
            # Other empty values, such as 0, are refused: all clients would share that scope.
            anonymous = anonymous or ""
        return scope_of(user, anonymous, self._tenant(), host_of(self._request))

    def _tenant(self) -> Any:
        tenant = self._settings.tenant
        return None if tenant is None else self._hook(tenant) or ""

    def _hook(self, hook: Callable[..., Any]) -> Any:
        """Return the result of a hook; a coroutine function of an async view runs in its loop."""
        result = hook(self.call.request, **self.call.kwargs)
        if not inspect.isawaitable(result):
            return result
        if self._is_async:
            return async_to_sync(_awaited)(result)
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidRedlock(
            f"{view_name(self.call.view)} is a sync view, but {view_name(hook)}, an argument of "
            "its @idempotent, is a coroutine function. Use a plain function"
        )

    # The decisions, and the lock of the key.

    def find(self) -> None:
        """Look for the record of the key."""
        assert self.claim is not None
        self._record = store_of(self._settings).find(self.claim)

    def is_stale(self, lock: KeyLock) -> bool:
        """Return whether there may be a record by now that was not found before the lock."""
        assert self.claim is not None
        # The INSERT fails if there is a record under the same secret, but not under another.
        may_have_changed = self._waited or self._record is not None or len(self.claim.hashes) > 1
        return lock is KeyLock.HELD and may_have_changed

    def decide(self, lock: KeyLock) -> Decision:
        """Return what to do, with the lock of the key in this state."""
        return decide(None if self._record is None else self._record.status, lock)

    @property
    def wait(self) -> float | None:
        """For how many seconds the request may wait while the first one runs; None if not."""
        return None if self.claim is None else self.claim.wait

    def lock(self, wait: float) -> InFlightLock:
        """Return the lock of the key, for an attempt that waits for so many seconds."""
        assert self.claim is not None
        self._waited = self._waited or wait > 0
        self.key_lock = self.claim.lock(using=self.options.using, wait=wait)
        return self.key_lock

    def state_of(self, error: RedlockError) -> KeyLock:
        """Return the state of a lock that was not acquired."""
        if isinstance(error, StoreUnavailable):
            logger.warning("idempotency: request refused, there is no quorum: %s", error)
            self._no_quorum = error
            return KeyLock.NO_QUORUM
        if isinstance(error, ResourceLocked):
            assert self.claim is not None
            is_same = {*self.claim.exact_names} & {*error.resources}
            return KeyLock.BUSY if is_same else KeyLock.BUSY_OTHERWISE
        return KeyLock.BUSY  # this task or thread holds it: its view has sent the request again

    # The view.

    @contextmanager
    def running(self, recorder: SeparateRecorder | TransactionRecorder) -> Iterator[None]:
        """Set the recorder, and what the view sees of its key and of its page."""
        request, claim = self._request, self.claim
        if claim is not None:
            if self._is_async:
                check_lock_of_handler(self.call)
            self.call.state.recorder = recorder
            recorder.claim = claim
            complete = recorder.complete if isinstance(recorder, SeparateRecorder) else None
            current = Idempotency(claim.key_hash, self._seed, complete)
        else:
            if not self._is_async and self._may_be_recorded and not open_blocks():
                self.call.state.recorder = recorder
            current = Idempotency()
        attach(request, current, self.options.using)
        try:
            yield
        except DATABASE_ERRORS as error:
            if claim is not None and not recorder.started:
                raise IdempotencyRefused(UNAVAILABLE) from error  # BEGIN failed, for example
            raise
        finally:
            self._is_first = recorder.started

    def run_view(self) -> Any:
        """Run the view and return its response; of an async view, return it to be awaited."""
        call = self.call
        if opens_transaction(call.view):
            return call.view(*call.args, **call.kwargs)
        return call.arun() if self._is_async else call.run()

    def described(self, response: Any) -> Any:
        """Return a response with the headers about its key."""
        forbid_caching(self.call.state, response)
        sent = self._settings.sent_header(self._request)
        if self.claim is not None:
            lifetime = str(int(self._settings.retention))
            _set_header(response, "Idempotency-Key-Lifetime", lifetime)
            if self._is_first:
                _set_header(response, "Idempotent-Replayed", "false")
                if not self._is_async:
                    forget_some(store_of(self._settings))
        if sent is not None:
            is_key = self.claim is not None and self.options.reads_header
            name, value = (self._settings.header, sent) if is_key else _IGNORED
            _set_header(response, name, value)
        return response

    # Without the view.

    def respond_without_view(self, action: Decision) -> Any:
        """Return the response of the first request, or raise an IdempotencyRefused."""
        record = self._record
        if isinstance(action, Problem):
            refused = self.refused(action)
            if self._no_quorum is not None:
                refused.retry_after = self._no_quorum.retry_after
                refused.remedy = self._no_quorum.remedy
            raise refused
        if action is Action.REPLAY and record is not None and record.response is not None:
            return self._replay(record.key_hash, record.response)
        if action is Action.MARK_UNCERTAIN and record is not None:
            self._mark_uncertain(record)
        raise IdempotencyRefused(UNAVAILABLE)  # the record has been deleted in the meantime

    def _mark_uncertain(self, record: Record) -> None:
        """Record that the outcome is uncertain, and refuse the request."""
        try:
            store_of(self._settings).mark_uncertain(record.key_hash, record.attempt)
        except AlreadyRecorded:
            # The view is about to complete the record in a transaction of its own.
            raise self.refused(KEY_IN_FLIGHT) from None
        logger.error("idempotency: the outcome of record %s is uncertain", record.key_hash[:8])
        raise self.refused(OUTCOME_UNCERTAIN)

    def _replay(self, key_hash: str, stored: StoredResponse) -> Any:
        replay_check, using = self.options.replay_check, self.options.using
        if replay_check is not None and not self._hook(replay_check):
            raise PermissionDenied
        response = stored.replay()
        if stored.messages:
            add_again(self._request, stored.messages)
        about = {"request": self._request, "key_hash": key_hash, "response": response}
        reports.replayed(using, Idempotency, about)
        return response

    def refused(self, refusal: Problem) -> IdempotencyRefused:
        """Count a refusal, and return its error to raise."""
        if name := COUNTERS.get(refusal.code):
            reports.counters.count(self.options.using, name)
        return IdempotencyRefused(refusal)


_IGNORED = ("Idempotency-Status", "ignored")


def _set_header(response: Any, name: str, value: str) -> None:
    # If a view returns anything else, Django raises an error later.
    if isinstance(response, HttpResponseBase):
        response[name] = value


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
