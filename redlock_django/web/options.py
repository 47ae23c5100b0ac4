"""The arguments of one `lock_resource(...)`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock, RedlockError, ResourceLocked
from redlock_django.locking.handler import locks
from redlock_django.locking.lock import Lock, lock
from redlock_django.web.request_user import authenticates_itself
from redlock_django.web.resources import Template
from redlock_django.web.transactions import view_name

OnLocked = Callable[[HttpRequest, ResourceLocked], Any]


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """The validated arguments of one `lock_resource(...)`."""

    templates: tuple[Template, ...]
    using: str
    ttl: float | None
    wait: float | None
    methods: frozenset[str] | None
    status: int | None
    on_locked: OnLocked | None

    def apply_to(self, request: HttpRequest) -> bool:
        """Return whether a request with this HTTP method is locked."""
        return bool(self.templates) and (self.methods is None or request.method in self.methods)

    def lock(self, request: HttpRequest, names: list[str]) -> Lock:
        """Return the lock on these resources, not yet acquired."""
        self.check()
        return lock(
            *dict.fromkeys(names),  # two templates may name one resource
            using=self.using,
            ttl=self.ttl,
            wait=self.wait,
            holder={"path": request.path},
        )

    def check(self) -> None:
        """Raise InvalidRedlock if the alias does not exist, or does not allow this TTL."""
        settings = locks[self.using].settings
        try:
            if self.ttl is not None:
                settings.check_ttl(self.ttl)
        except ValueError as error:
            raise InvalidRedlock(f"lock_resource(using={self.using!r}): {error}") from None

    def check_user(self, view: Callable[..., Any], owner: object = None) -> None:
        """Raise InvalidRedlock if `<user.pk>` is read before the view authenticates the user."""
        needs_user = any(template.needs_user for template in self.templates)
        if needs_user and authenticates_itself(view, owner):
            raise InvalidRedlock(
                f"{view_name(view)}: <user.pk> is read before REST framework authenticates the "
                "user. Put @lock_resource on a handler method or an action of a class with "
                "redlock_django.contrib.drf.LockAPIMixin"
            )
        if getattr(getattr(view, "__self__", None), "auth_callbacks", None):
            raise InvalidRedlock(
                f"{view_name(view)}: django-ninja authenticates the user inside of "
                "@decorate_view(lock_resource(...)), so anonymous clients would hold its locks. "
                "Put @lock_resource directly on the function, below @api.post(...)"
            )

    def own_answer(self, request: HttpRequest, error: RedlockError) -> Any:
        """Return the answer of `on_locked` to a held lock, or None."""
        if self.on_locked is None or not isinstance(error, ResourceLocked):
            return None
        return self.on_locked(request, error)

    def status_for(self, error: RedlockError) -> int | None:
        """Return the HTTP status of the answer to a held lock; None for any other error."""
        if not isinstance(error, ResourceLocked):
            return None
        return self.status or locks[self.using].settings.status

    def missing(self, kwargs: Collection[str]) -> list[tuple[str, str]]:
        """Return the URL kwargs that templates need beyond `kwargs`, each with its template."""
        return [(n, t.text) for t in self.templates for n in sorted(t.names - set(kwargs))]


def no_lock(using: str) -> LockOptions:
    """Return the options of a view that opens its own transaction and acquires no lock."""
    return LockOptions(
        templates=(),
        using=using,
        ttl=None,
        wait=None,
        methods=None,
        status=None,
        on_locked=None,
    )
