"""The arguments of one `lock_resource(...)`, and how many of its requests may wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections
from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock, NotAcquired, RedlockError, ResourceLocked
from redlock_django.locking.caller import open_transactions
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import locks
from redlock_django.locking.thread_state import reset_with_threads, threads_are_greenlets
from redlock_django.locking.transactions import MayReadOldData
from redlock_django.web.misplaced_locks import OUTSIDE
from redlock_django.web.name_templates import Template
from redlock_django.web.view_kinds import Framework, authenticating_framework, view_name

OnLocked = Callable[[HttpRequest, ResourceLocked], Any]


VALUES = ("ttl", "wait", "methods", "status", "on_disconnect", "limit")
"""The arguments that are plain values: rules and attributes of a view class have them, too."""


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """The validated arguments of one `lock_resource(...)`."""

    templates: tuple[Template, ...]
    using: str
    ttl: float | None = None
    wait: float | None = None
    methods: frozenset[str] | None = None
    status: int | None = None
    on_locked: OnLocked | None = None
    on_disconnect: str | None = None
    limit: int | None = None
    """How many requests may hold the name at once; None for one."""

    def apply_to(self, request: HttpRequest) -> bool:
        """Return whether a request with this HTTP method is locked."""
        return bool(self.templates) and (self.methods is None or request.method in self.methods)

    @property
    def seconds_to_wait(self) -> float:
        """The seconds for which a request may wait; 0.0 if it does not wait."""
        return locks[self.using].settings.wait if self.wait is None else self.wait

    def enter(self, lock: Lock, view: Callable[..., Any]) -> None:
        """Acquire a lock as a `with` block does; the caller releases it.

        Only a request that has to wait returns its pooled database connections and counts towards
        MAX_WAITERS. A request that may not wait is refused at once.
        """
        wait = self.seconds_to_wait
        with _naming_old_data(view):
            if wait:
                lock.set_wait(0.0)  # for the first attempt
            if wait and has_room(self.using):
                self._enter_waiting(lock, wait)
            else:
                lock.__enter__()

    def _enter_waiting(self, lock: Lock, wait: float) -> None:
        lock.is_repeated = True
        with suppress(NotAcquired):
            lock.__enter__()
            return
        lock.is_repeated = False
        with waiting_thread(self.using) as may_wait:
            if may_wait:
                lock.set_wait(wait)
                return_pooled_connections()
            lock.__enter__()

    async def aenter(self, lock: Lock, view: Callable[..., Any]) -> None:
        """Acquire as `enter` does; an async view waits in no thread."""
        wait = self.seconds_to_wait
        with _naming_old_data(view):
            if wait and has_pools():
                lock.set_wait(0.0)
                lock.is_repeated = True
                with suppress(NotAcquired):
                    await lock.__aenter__()
                    return
                lock.is_repeated = False
                await sync_to_async(return_pooled_connections)()
                lock.set_wait(wait)
            await lock.__aenter__()

    def lock(self, request: HttpRequest, names: list[str]) -> Lock:
        """Return the lock on these resources, for `enter`."""
        if self.ttl is not None:  # all else that `check` finds, `Lock` finds too
            self.check()
        lock = Lock(
            *dict.fromkeys(names),  # two templates may name one resource
            using=self.using,
            ttl=self.ttl,
            wait=self.wait,
            holder={"path": request.path},
            limit=self.limit,
        )
        lock.is_of_call = lock.keeps_response = True
        return lock

    def check(self) -> None:
        """Raise InvalidRedlock if the alias does not exist, or does not allow this TTL."""
        settings = locks[self.using].settings
        try:
            if self.ttl is not None:
                settings.check_ttl(self.ttl)
        except ValueError as error:
            raise InvalidRedlock(f"lock_resource(using={self.using!r}): {error}") from None

    def check_limit(self) -> None:
        """Raise InvalidRedlock if what is locked has one holder, whatever `limit` says."""
        if self.limit != 1 and len(self.templates) > 1:
            raise InvalidRedlock(
                f"lock_resource(): limit={self.limit} needs one template, got "
                f"{len(self.templates)}: keep one, and acquire the others in the view, with lock()"
            )

    def check_order(self, view: Callable[..., Any], owner: object = None) -> None:
        """Raise InvalidRedlock if the lock comes before a framework authenticates the user.

        `owner` is the instance whose method the view is, or None.
        """
        framework = authenticating_framework(view, owner)
        if framework is Framework.NINJA:
            raise InvalidRedlock(
                f"{view_name(view)}: django-ninja authenticates the user inside of "
                "@decorate_view(lock_resource(...)), so anonymous clients would hold its locks. "
                "Put @lock_resource directly on the function, below @api.post(...)"
            )
        if framework is Framework.REST_FRAMEWORK and self._needs_user:
            raise InvalidRedlock(
                f"{view_name(view)}: <user.pk> is read before REST framework authenticates the "
                "user. Put @lock_resource on a handler method or an action of a class with "
                "redlock_django.contrib.drf.LockAPIMixin"
            )

    def check_kwargs(self, view: Callable[..., Any], kwargs: Collection[str]) -> None:
        """Raise InvalidRedlock if a template needs a URL kwarg that the URL does not provide."""
        if self._url_kwargs.issubset(kwargs):
            return
        for name, template in self.missing(kwargs):
            given = ", ".join(map(repr, kwargs)) or "none"
            where = f"{view_name(view)}: template {template!r}"
            raise InvalidRedlock(f"{where} needs the URL kwarg {name!r}; the URL provides: {given}")

    def check_on_locked(self, view: Callable[..., Any]) -> None:
        """Raise InvalidRedlock if `on_locked` of a sync view is a coroutine function."""
        if self.on_locked is not None and iscoroutinefunction(self.on_locked):
            raise InvalidRedlock(
                f"{view_name(view)} is a sync view, but {view_name(self.on_locked)}, the on_locked "
                "of its @lock_resource, is a coroutine function. Use a plain function"
            )

    def hook_for(self, error: RedlockError) -> Callable[..., Any] | None:
        """Return `on_locked` if it is to be asked for the answer to this error."""
        return self.on_locked if isinstance(error, ResourceLocked) else None

    def status_for(self, error: RedlockError) -> int | None:
        """Return the HTTP status of the answer to a held lock; None for any other error."""
        if not isinstance(error, ResourceLocked):
            return None
        return self.status or locks[self.using].settings.status

    @cached_property
    def _needs_user(self) -> bool:
        return any(template.needs_user for template in self.templates)

    @cached_property
    def _url_kwargs(self) -> frozenset[str]:
        return frozenset[str]().union(*(template.names for template in self.templates))

    def missing(self, kwargs: Collection[str]) -> list[tuple[str, str]]:
        """Return the URL kwargs that templates need beyond `kwargs`, each with its template."""
        return [(n, t.text) for t in self.templates for n in sorted(t.names - set(kwargs))]


@contextmanager
def _naming_old_data(view: Callable[..., Any]) -> Iterator[None]:
    """Name the view whose lock is refused in the block, because of an open transaction."""
    try:
        yield
    except MayReadOldData as error:
        raise InvalidRedlock(
            f"{view_name(view)} is called inside an open transaction of {error.alias!r}, which may "
            f"read data from before the lock. {OUTSIDE}. A middleware that opens a transaction "
            "around locked views needs PostgreSQL at READ COMMITTED; instead of "
            "RevisionMiddleware, use reversion.views.create_revision below @lock_resource"
        ) from None


@cache
def no_lock(using: str) -> LockOptions:
    """Return the options of a view that opens its own transaction and acquires no lock."""
    return LockOptions(templates=(), using=using)


class _WaitingThreads:
    """How many threads of the process are waiting in views."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.changing = threading.Lock()
        self.count = 0


_waiting = _WaitingThreads()
reset_with_threads(_waiting._reset)


def has_room(using: str) -> bool:
    """Return whether one more request may wait in its thread: fewer than MAX_WAITERS do.

    Greenlets of gevent are not counted: one that waits occupies no thread.
    """
    return _waiting.count < locks[using].settings.max_waiters or threads_are_greenlets()


@contextmanager
def waiting_thread(using: str) -> Iterator[bool]:
    """Count the thread of a sync view as waiting, if it may wait; return whether it may.

    It may not if MAX_WAITERS threads of the process are waiting already: those that wait must not
    occupy the last thread of a server, which other requests need.
    """
    _ = locks[using]  # not inside the mutex: a new service imports its store
    with _waiting.changing:
        may_wait = has_room(using)
        _waiting.count += may_wait
    try:
        yield may_wait
    finally:
        with _waiting.changing:
            _waiting.count -= may_wait


def has_pools() -> bool:
    """Return whether a database has a pool of connections."""
    return any(entry["OPTIONS"].get("pool") for entry in connections.settings.values())


def return_pooled_connections() -> None:
    """Return the database connections of this thread to their pools, where other threads need them.

    The next query gets one again. A connection that is inside a transaction is kept, and so is one
    without a pool, which no other thread could use.
    """
    kept = open_transactions()
    for connection in connections.all(initialized_only=True):
        is_pooled = bool(connection.settings_dict["OPTIONS"].get("pool"))
        if is_pooled and not connection.in_atomic_block and connection not in kept:
            connection.close()
