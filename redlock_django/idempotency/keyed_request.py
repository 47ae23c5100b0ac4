"""One request of an idempotent view: its record, the lock of its key, and its response."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import (
    IdempotencyRefused,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.idempotency.key import Claim, ClaimReader, lock_name
from redlock_django.idempotency.placement import (
    check_lock_of_handler,
    check_middleware,
    check_not_excluded,
    check_other_views,
    check_placement,
)
from redlock_django.idempotency.protocol import (
    Action,
    Decision,
    KeyLock,
    decide,
)
from redlock_django.idempotency.recorder import (
    SeparateRecorder,
    TransactionRecorder,
    forget_some,
)
from redlock_django.idempotency.records import DATABASE_ERRORS, AlreadyRecorded, Record, store_of
from redlock_django.idempotency.refusals import (
    COUNTERS,
    KEY_IN_FLIGHT,
    OUTCOME_UNCERTAIN,
    UNAVAILABLE,
)
from redlock_django.idempotency.request import Idempotency, attach
from redlock_django.idempotency.response import StoredResponse, add_again
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.locking.caller import open_blocks
from redlock_django.locking.lock import Lock
from redlock_django.locking.reports import counters
from redlock_django.signals import request_replayed, send
from redlock_django.web.answers import Problem
from redlock_django.web.locked_view import Call
from redlock_django.web.misplaced_locks import idempotent_below_error
from redlock_django.web.request import current_page, forbid_caching
from redlock_django.web.view_kinds import opens_transaction

logger = logging.getLogger("redlock_django")


class InFlightLock(Lock):
    """The lock that a request with a key holds while it runs, whatever `ON_UNAVAILABLE` says.

    Without this lock it is not known whether the first request is still running.
    """

    _strict = True
    keeps_response = True

    def __init__(self, *resources: str, **options: Any) -> None:
        super().__init__(*resources, **options)
        # Names with a fingerprint come first: the refused one tells which request is running.
        self._arguments.in_order = self.resources


class KeyedRequest:
    """One request of an idempotent view, and what is done with it.

    While the view runs, no frame has the key in a local variable: error reports would show it.
    Nothing here awaits: an async view calls in threads what uses the database or calls the site.
    `claim` is None for a request without a key, `key_lock` the lock of the key once it was tried.
    """

    claim: Claim | None = None
    key_lock: InFlightLock | None = None
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
        self._reader = ClaimReader(call, options, is_async=is_async)
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
        key = self._reader.key()
        if key is None:
            return None
        check_placement(self.call, self._settings, is_async=self._is_async)
        self.claim = self._reader.claim(key)
        self.find()
        check_other_views(self.call, self.claim.key_hash, found=self._record is not None)
        return self.decide(KeyLock.NOT_TRIED)

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
        holder = {"path": self.call.request.path}
        using = self.options.using
        self.key_lock = InFlightLock(*self._names(), using=using, wait=wait, holder=holder)
        return self.key_lock

    def _names(self) -> list[str]:
        # A name with a fingerprint is locked while the same request runs, a name without one while
        # any request with the key runs. Another process may still use an older SECRET_KEY.
        hashes = () if self.claim is None else self.claim.hashes
        names = [lock_name(each.key_hash) for each in hashes]
        exact = [f"{lock_name(each.key_hash)}~{each.fingerprint[:32]}" for each in hashes]
        return [*exact, *names]

    def state_of(self, error: RedlockError) -> KeyLock:
        """Return the state of a lock that was not acquired."""
        if isinstance(error, StoreUnavailable):
            logger.warning("idempotency: request refused, there is no quorum: %s", error)
            self._no_quorum = error
            return KeyLock.NO_QUORUM
        if isinstance(error, ResourceLocked):
            exact = self._names()[: len(self._names()) // 2]
            return KeyLock.BUSY if {*exact} & {*error.resources} else KeyLock.BUSY_OTHERWISE
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
            current = Idempotency(claim.key_hash, self._reader.seed, complete)
        else:
            if not self._is_async and self._may_be_recorded and not open_blocks():
                self.call.state.recorder = recorder
            current = Idempotency()
        attach(request, current, self.options.using)
        outer = current_page.get()
        current_page.set(request)
        try:
            yield
        except DATABASE_ERRORS as error:
            if claim is not None and not recorder.started:
                raise IdempotencyRefused(UNAVAILABLE) from error  # BEGIN failed, for example
            raise
        finally:
            self._is_first = recorder.started
            current_page.set(outer)

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
        if replay_check is not None and not self._reader.hook(replay_check):
            raise PermissionDenied
        response = stored.replay()
        if stored.messages:
            add_again(self._request, stored.messages)
        counters.count(using, "replayed")
        about = {"request": self._request, "key_hash": key_hash, "response": response}
        send(request_replayed, sender=Idempotency, using=using, **about)
        return response

    def refused(self, refusal: Problem) -> IdempotencyRefused:
        """Count a refusal, and return its error to raise."""
        if name := COUNTERS.get(refusal.code):
            counters.count(self.options.using, name)
        return IdempotencyRefused(refusal)


_IGNORED = ("Idempotency-Status", "ignored")


def _set_header(response: Any, name: str, value: str) -> None:
    # If a view returns anything else, Django raises an error later.
    if isinstance(response, HttpResponseBase):
        response[name] = value
