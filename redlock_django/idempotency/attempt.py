"""One request of an idempotent view: what `protocol` decides, done.

The way through is written once, as a generator that yields what has to be done; `drivers` do it.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import AlreadyHeld, QuorumUnreachable, ResourceLocked
from redlock_django.idempotency import events
from redlock_django.idempotency.current import Idempotency
from redlock_django.idempotency.database_records import UNREACHABLE, DatabaseStore
from redlock_django.idempotency.decorator_options import IdempotentOptions, judge, store_of
from redlock_django.idempotency.errors import (
    IdempotencyUnavailable,
    KeyInvalid,
    KeyMissing,
    KeyUnscoped,
    OutcomeUncertain,
    RequestTooLarge,
)
from redlock_django.idempotency.fingerprint import FORMS, fingerprint
from redlock_django.idempotency.forms import offer_field
from redlock_django.idempotency.key import LockOfKey, lock_name, parse_key, seal, seed_of
from redlock_django.idempotency.placement import check_place
from redlock_django.idempotency.protocol import Decision, KeyLock, Step, decide
from redlock_django.idempotency.recorders import AroundTheView, Recording, WithinTheTransaction
from redlock_django.idempotency.records import Beaten, Claim, Record, Store
from redlock_django.idempotency.scope import UserId, scope_of, user_of
from redlock_django.idempotency.settings import IdempotencySettings
from redlock_django.idempotency.work import Ask, InThread, RunView, TakeLock, Way, WhoAsks
from redlock_django.web.call import Call

logger = logging.getLogger("redlock_django")


class Attempt:
    """One request that may have been here before.

    The key is in no frame that is still there when the view runs: error reports show frames.
    """

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self.call = call
        self._options = options
        self._is_async = is_async
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._from_form = False
        self._seed = b""
        self._retry_after: float | None = None

    @cached_property
    def _settings(self) -> IdempotencySettings:
        return self._options.settings()

    def way(self) -> Way:
        """Lead from the request to its response; raises what it is refused with."""
        header = self._settings.header
        claim = None
        if self._request.method in self._settings.methods:
            claim = yield from self._claim()
        if claim is None:
            self._request.idempotency = Idempotency()  # type: ignore[attr-defined]
            offer_field(self._request, self._options.using)
            response = yield RunView(None)
            if header in self._request.headers or self._from_form:
                _mark(response, "Idempotency-Status", "ignored")
            return response
        response = yield from self._deduplicated(claim)
        if not self._from_form:
            _mark(response, header, self._request.headers[header])
        return response

    def _claim(self) -> Way:
        """Say whose request with which key this is; None for one that is not protected."""
        sent = self._request.headers.get(self._settings.header)
        key = parse_key(sent) if sent is not None else (yield from self._key_in_form())
        if key is None:
            if self._settings.required:
                raise KeyMissing
            return None
        if self._settings.key_pattern and not self._settings.key_pattern.fullmatch(key):
            raise KeyInvalid
        check_place(self.call, self._settings, is_async=self._is_async)
        user = user_of((yield WhoAsks()))
        scope = yield from self._scope(user)
        if scope is None:
            if self._settings.required:
                raise KeyUnscoped
            return None
        self._seed = seed_of(scope, key)
        return Claim(
            seals=seal(scope, key, (yield InThread(self._fingerprint))),
            user="" if user is None else user.pk,
            method=self._request.method or "",
            path=self._request.path,
            retention=timedelta(seconds=self._settings.retention),
        )

    def _key_in_form(self) -> Way:
        if self._request.method != "POST" or self._request.content_type not in FORMS:
            return None
        try:
            values = yield InThread(lambda: self._request.POST.getlist(self._settings.field))
        except RequestDataTooBig:
            raise RequestTooLarge from None
        if len(values) > 1:
            raise KeyInvalid
        self._from_form = bool(values)
        return parse_key(values[0]) if values else None

    def _scope(self, user: UserId | None) -> Way:
        anonymous = tenant = None
        if user is None and self._options.anonymous_scope is not None:
            # An empty answer is a mistake, not a missing scope.
            anonymous = (yield Ask(self._options.anonymous_scope)) or ""
        if self._settings.tenant is not None:
            tenant = (yield Ask(self._settings.tenant)) or ""
        return scope_of(user, anonymous, tenant)

    def _deduplicated(self, claim: Claim) -> Way:
        store = store_of(self._settings)
        record: Record | None = yield InThread(partial(store.find, claim))
        step = self._decide(record, KeyLock.NOT_TRIED)
        if step is Step.LOCK:
            waiting = ("wait", "auto") if self._from_form else ("wait",)
            waits = self._settings.in_flight in waiting
            state = yield from self._lock(claim, 0)
            if waits and state is KeyLock.BUSY:
                # Only now: who waits would also wait for masters, and the client is better
                # told at once that they are down.
                state = yield from self._lock(claim, self._settings.wait)
            if state is KeyLock.HELD and (waits or record is not None):
                record = yield InThread(partial(store.find, claim))
            step = self._decide(record, state)
        if step is Step.RUN:
            response = yield from self._first(self._recorder(store, claim, instead_of=record))
            if response is not None:
                return response
            record = yield InThread(partial(store.find, claim))
            step = self._decide(record, KeyLock.BUSY)
        return (yield from self._instead(step, store, record))

    def _lock(self, claim: Claim, wait: float) -> Way:
        # The first are refused only if the very same request is running, the others if any with
        # this key is: here, or in a process that has another SECRET_KEY still.
        keys = [lock_name(seal.key_hash) for seal in claim.seals]
        exact = [f"{k}~{s.fingerprint[:32]}" for k, s in zip(keys, claim.seals, strict=True)]
        lock = LockOfKey(
            *exact,
            *keys,
            using=self._options.using,
            wait=wait,
            holder={"path": self._request.path},
        )
        try:
            yield TakeLock(lock)
        except AlreadyHeld:
            return KeyLock.BUSY
        except ResourceLocked as error:
            same = set(exact).intersection(error.resource.split(", "))
            return KeyLock.BUSY if same else KeyLock.BUSY_OTHERWISE
        except QuorumUnreachable as error:
            logger.warning("idempotency: a request is refused, there is no quorum: %s", error)
            self._retry_after = error.retry_after
            return KeyLock.DOWN
        return KeyLock.HELD

    def _first(self, recorder: Recording) -> Way:
        """Run the view and give its response; None where another request was faster."""
        complete = recorder.complete if self._is_async else None
        current = Idempotency(recorder.claim.key_hash, self._seed, complete)
        self._request.idempotency = current  # type: ignore[attr-defined]
        offer_field(self._request, self._options.using)
        try:
            response = yield RunView(recorder)
        except Beaten:
            return None
        except Exception as error:
            if recorder.started:
                yield InThread(partial(recorder.failed, error))
            elif isinstance(error, UNREACHABLE):
                raise IdempotencyUnavailable from error  # BEGIN already, say
            raise
        if recorder.started:
            yield InThread(partial(recorder.answered, response))
            _mark(response, "Idempotent-Replayed", "false")
        return response

    def _instead(self, step: Decision, store: Store, record: Record | None) -> Way:
        """Answer without running the view."""
        if isinstance(step, type):
            events.refused(self._options.using, step)
            raise step(retry_after=self._retry_after)
        if record is None or step not in (Step.REPLAY, Step.DOUBT):
            raise IdempotencyUnavailable  # what was there a moment ago is gone
        if step is Step.DOUBT:
            yield InThread(partial(store.doubt, record.key_hash, record.attempt))
            # All of the hash: records in a cache are found by nothing less.
            logger.error("idempotency: the outcome of record %s is uncertain", record.key_hash)
            events.refused(self._options.using, OutcomeUncertain)
            raise OutcomeUncertain
        if self._options.replay_check is not None and not (yield Ask(self._options.replay_check)):
            raise PermissionDenied
        response = record.replay()
        events.replayed(
            self._options.using,
            sender=Idempotency,
            request=self._request,
            key_hash=record.key_hash,
            response=response,
        )
        return response

    def _decide(self, record: Record | None, lock: KeyLock) -> Decision:
        known = None if record is None else record.known
        return decide(known, lock, rerun_expired=self._settings.on_expired == "run")

    def _fingerprint(self) -> bytes:
        return fingerprint(
            self._request,
            key_field=self._settings.field,
            canonical_json=self._options.canonical_json,
            ignore=self._options.ignore,
            largest=self._settings.max_request_bytes,
        )

    def _recorder(self, store: Store, claim: Claim, instead_of: Record | None) -> Recording:
        judged = partial(judge, self._settings)
        if isinstance(store, DatabaseStore) and not self._is_async:
            return WithinTheTransaction(store, claim, judged, instead_of)
        return AroundTheView(store, claim, judged, instead_of)


def _mark(response: Any, name: str, value: str) -> Any:
    # A view may have returned something that Django has yet to complain about.
    if isinstance(response, HttpResponseBase):
        response[name] = value
    return response
