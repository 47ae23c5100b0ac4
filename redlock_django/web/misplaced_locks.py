"""The errors about locks, and records, that are in a place where they cannot keep a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.conf.settings import template_middleware
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock
from redlock_django.web.view_kinds import view_name


def two_locks_error(view: Callable[..., Any]) -> InvalidRedlock:
    """Return the error for a view that has two lock decorators."""
    return InvalidRedlock(
        f"{view_name(view)} has two lock decorators, and each opens its own transaction. "
        "Pass all templates to one decorator: @lock_resource('order:<int:pk>', 'user:<user.pk>')"
    )


def idempotent_below_error(view: Callable[..., Any]) -> InvalidRedlock:
    """Return the error for a view whose @idempotent is inside of its lock."""
    return InvalidRedlock(
        f"{view_name(view)}: @idempotent is below the lock, so a replay would wait for the lock, "
        "or be refused. Put @idempotent above @lock_resource; in a class, list IdempotentMixin "
        "before LockResourceMixin, or decorate dispatch or the handler with both: "
        "@method_decorator([idempotent, lock_resource(...)]). In place of a rule, use the decorator"
    )


def place_of_lock(view: Callable[..., Any]) -> str:
    """Return where the lock around a view is written, for messages: a rule, or the view."""
    return getattr(view, "lock_rule", None) or view_name(view)


def locked_twice_error(view: Callable[..., Any], request: Any, error: AlreadyHeld) -> AlreadyHeld:
    """Return the error for a view that locks a name that code around it has locked."""
    around: Any = getattr(request.resolver_match, "func", None)
    function = around
    while function is not None and function is not view:
        function = getattr(function, "__wrapped__", None)
    by_rule = hasattr(around, "lock_rule") and around.__wrapped__ is not view
    # Of the lock around a class, the view is its `dispatch`.
    is_around = function is None and getattr(view, "__name__", "") != "dispatch"
    if (by_rule or is_around) and hasattr(around, "lock_options"):
        place = place_of_lock(around)
    else:
        place = "code around it, such as a middleware or a view that calls this one,"
    return AlreadyHeld(
        f"{view_name(view)} locks {error.resource!r}, which {place} has locked already in this "
        "request. Lock one name in one place: remove it from one of them. In code, "
        "lock(..., reentrant=True) nests in the lock of its caller",
        resource=error.resource,
    )


def async_error() -> RuntimeError:
    """Return the error about an async view that would need a transaction."""
    # The marker of a method is copied to the view of its class, and hides Django's error there.
    return RuntimeError(
        "You cannot use ATOMIC_REQUESTS with async views. Put @transaction.non_atomic_requests "
        "above @lock_resource and @idempotent (of a class: on dispatch, first in the list of "
        "@method_decorator), or set ATOMIC_REQUESTS to False."
    )


def check_template_middleware(view: Callable[..., Any], *, recorded: bool) -> None:
    """Raise InvalidRedlock if a middleware changes template responses before they are rendered.

    A response is rendered in the transaction of its view, and `recorded` ones there in any case.
    """
    if name := template_middleware():
        render = "return render(request, ...), or in a class, response.render()"
        middleware = "Add LockMiddleware to MIDDLEWARE, under which it is rendered later; or "
        raise InvalidRedlock(
            f"{view_name(view)} returned a template response, which "
            f"{name}.process_template_response would get only after it was rendered under the "
            f"lock{' and recorded by @idempotent' if recorded else ''}. "
            + (render.capitalize() if recorded else middleware + render)
        )


def unanswerable_error(view: Callable[..., Any], connection: BaseDatabaseWrapper) -> InvalidRedlock:
    """Return the error for a view whose lock errors cannot be answered after a block's rollback."""
    return InvalidRedlock(
        f"{view_name(view)} is called inside an atomic block of {connection.alias!r}, so only "
        f"LockMiddleware can answer a lock error after that is rolled back. {OUTSIDE}. "
        "Or add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE"
    )


SEEN_BY_DJANGO = (
    "Write decorators above it with functools.wraps, and decorate a partial() or an instance "
    "itself, so that Django sees that the view opens its own transaction"
)
OUTSIDE = (
    "Put @lock_resource above @transaction.atomic; for a class, lock dispatch: "
    '@method_decorator(lock_resource(...), name="dispatch") or LockResourceMixin; for REST '
    "framework, use redlock_django.contrib.drf.LockAPIMixin; for django-ninja, set ATOMIC_REQUESTS "
    f"to False and put @transaction.atomic below @lock_resource. {SEEN_BY_DJANGO}"
)
"""How to acquire a lock outside of the transaction; the end of several messages."""
