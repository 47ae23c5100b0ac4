"""The place of `@idempotent`: outside of the transaction, inside of the permission checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.locking.caller import open_blocks
from redlock_django.web.misplaced_locks import SEEN_BY_DJANGO
from redlock_django.web.view_kinds import (
    Framework,
    TransactionMarker,
    authenticating_framework,
    checks_user,
    opens_transaction,
    operation_of,
    records_requests,
    view_name,
)

if TYPE_CHECKING:
    from redlock_django.web.locked_view import Call


def check_placement(call: Call, settings: IdempotencySettings, *, is_async: bool) -> None:
    """Raise InvalidRedlock if a request cannot be recorded together with its effects."""
    name = view_name(call.view)
    if call.wrapped and lacks_mixin(call.owner):
        raise mixin_error(name)
    framework = None if call.wrapped else authenticating_framework(call.view, call.owner)
    if framework is not None:
        raise authenticates_inside_error(name, framework)
    if is_async:
        return
    if blocks := open_blocks():
        raise InvalidRedlock(
            f"{name} is called inside an atomic block of {blocks[0].alias!r}, so that @idempotent "
            f"cannot know what is committed. {OUTSIDE}"
        )
    for connection in connections.all(initialized_only=True):
        if _is_without_autocommit(connection):
            raise InvalidRedlock(
                f"{name}: autocommit is off for the database {connection.alias!r}, so that "
                "@idempotent cannot know what is committed. Remove AUTOCOMMIT=False or "
                "set_autocommit(False)"
            )


def check_not_excluded(
    view: Callable[..., Any], marker: Collection[str] | None, options: IdempotentOptions
) -> None:
    """Raise InvalidRedlock if a sync view must not have the transaction of its record."""
    # If nothing is excluded, the settings, which may be invalid, are not needed.
    if not (marker and isinstance(marker, TransactionMarker)):
        return
    database = options.settings().database
    if database in {*marker}:
        raise InvalidRedlock(
            f"{view_name(view)} is marked with @transaction.non_atomic_requests, but @idempotent "
            f"records it in its own transaction of {database!r}. Remove the mark"
        )


def check_other_views(call: Call, key_hash: str, *, found: bool) -> None:
    """Raise InvalidRedlock if a record was found that another view of this request may have made.

    The response of that view would be replayed for this one, which would not run.
    """
    name, owner, used = view_name(call.view), call.owner, call.state.views_of_keys
    if owner is not None:
        name = f"{view_name(type(owner))}.{getattr(call.view, '__name__', '?')}"
    first = used.get(key_hash, name)
    if found and first != name:
        raise InvalidRedlock(
            f"{name} is called after {first} in one request, and both use its idempotency key. "
            "Put @idempotent on the view that calls them, and on neither of them"
        )
    call.state.views_of_keys = {key_hash: name, **used}


def _is_without_autocommit(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not (connection.in_atomic_block or connection.autocommit)


def check_middleware(call: Call) -> None:
    """Raise InvalidRedlock if the answer to an error of an async view could not be recorded."""
    # A view that is called without a URL, as in tests, is called without middleware, too.
    if call.state.has_middleware or call.request.resolver_match is None:
        return
    raise InvalidRedlock(
        f"{view_name(call.view)} is an async view, and its record is completed with the answer "
        "that leaves LockMiddleware. Add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE, "
        "after AuthenticationMiddleware"
    )


OUTSIDE = (
    "Put @idempotent above @transaction.atomic; for a class under ATOMIC_REQUESTS, use "
    'IdempotentMixin or @method_decorator(idempotent, name="dispatch"); for django-ninja, set '
    f"ATOMIC_REQUESTS to False. {SEEN_BY_DJANGO}"
)


def lacks_mixin(owner: object) -> bool:
    """Return whether a REST framework view or class has no LockAPIMixin."""
    return not hasattr(owner, "finish_under_lock")


def mixin_error(name: str) -> InvalidRedlock:
    """Return the error for a handler of a REST framework view without LockAPIMixin."""
    return InvalidRedlock(
        f"{name}: with REST framework, @idempotent needs "
        "redlock_django.contrib.drf.LockAPIMixin as the first base class of the view"
    )


def authenticates_inside_error(name: str, framework: Framework) -> InvalidRedlock:
    """Return the error for a view whose replays its framework would not authenticate."""
    return InvalidRedlock(
        f"{name}: {framework.value} authenticates the user inside of @idempotent, so a replay "
        f"would be sent to a client that is not logged in. {_AFTER_AUTHENTICATION[framework]}"
    )


_AFTER_AUTHENTICATION = {
    Framework.REST_FRAMEWORK: "Put @idempotent on a handler method or an action of a class with "
    "redlock_django.contrib.drf.LockAPIMixin, and not on dispatch, as_view() or @api_view",
    Framework.NINJA: "Put @idempotent directly on the function, below @api.post(...), and not in "
    "@decorate_view or add_decorator(..., mode='view'); return an HttpResponse there",
}


def check_lock_of_operation(view: Callable[..., Any]) -> None:
    """Raise InvalidRedlock for an operation of django-ninja whose function has a lock."""
    if opens_transaction(getattr(operation_of(view), "view_func", None)):
        raise InvalidRedlock(
            f"{view_name(view)}: @idempotent in @decorate_view begins a transaction before the "
            "lock of the function is acquired, or records the answer to a lock that is held, for "
            "all retries. Put @idempotent on the function, above "
            "@lock_resource, and not in @decorate_view; return an HttpResponse there"
        )


def inner_permission_check(view: Callable[..., Any], owner: type | None = None) -> str | None:
    """Return the name of a permission check that a replay would skip, or None.

    `view` is the decorated view; `owner` is the class if the view is its `dispatch`.
    """
    if checks_user(view):
        return "a login or permission decorator"
    classes: tuple[type, ...] = getattr(view, "view_class", object).__mro__
    if owner is not None:
        classes = owner.__mro__
        while classes and not records_requests(vars(classes[0]).get("dispatch")):
            classes = classes[1:]
    # A class that inherits from AccessMixin has imported it. Importing it here would require
    # django.contrib.auth.
    mixins: Any = sys.modules.get("django.contrib.auth.mixins")
    for cls in classes:
        own = vars(cls).get("dispatch")
        if own is None or records_requests(own):
            continue
        if checks_user(own) or (mixins is not None and issubclass(cls, mixins.AccessMixin)):
            return cls.__name__
    return None


def handler_permission_check(owner: type, methods: Iterable[str]) -> str | None:
    """Return the name of a handler of a view class that checks permissions itself, or None.

    `methods` are the HTTP methods whose requests may be replayed.
    """
    for name in sorted(map(str.lower, methods)):
        handler = getattr(owner, name, None)
        if checks_user(handler):
            return f"the login or permission decorator of {name}()"
    return None


def check_permissions(call: Call, options: IdempotentOptions) -> None:
    """Raise InvalidRedlock if a replay to this request would skip a permission check of its class.

    A function was checked when it was decorated.
    """
    owner = _class_inside(call)
    if options.replay_check is not None or owner is None:
        return
    check = None if call.owner is None else inner_permission_check(call.view, owner)
    if check is None and call.request.method in options.settings().methods:
        check = handler_permission_check(owner, [call.request.method])
    if check is not None:
        raise replay_skips_check_error(owner, check)


def check_lock_of_handler(call: Call) -> None:
    """Raise InvalidRedlock if the answer to a held lock of an async handler would be recorded."""
    name = str(call.request.method).lower()
    owner = _class_inside(call)
    lock = getattr(getattr(owner, name, None), "lock_options", None)
    if owner is not None and lock is not None and lock.apply_to(call.request):
        raise InvalidRedlock(
            f"{view_name(owner)}.{name}: its lock is inside of @idempotent, which would record the "
            "answer to a lock that is held, for all retries. Put @idempotent on the handler, above "
            "@lock_resource, or put both on the class: list IdempotentMixin and LockResourceMixin"
        )


def _class_inside(call: Call) -> type | None:
    """Return the class whose handlers are inside of @idempotent, or None for a function."""
    if call.owner is None:
        view_class: type | None = getattr(call.view, "view_class", None)
        return view_class
    return type(call.owner) if getattr(call.view, "__name__", "") == "dispatch" else None


def replay_skips_check_error(view: Callable[..., Any], check: str) -> InvalidRedlock:
    """Return the error for a view with an `inner_permission_check`."""
    return InvalidRedlock(
        f"{view_name(view)}: {check} is inside of @idempotent, so a replay would be sent to a user "
        "who no longer has the permission. Put @idempotent below login and permission decorators; "
        "in a class, list IdempotentMixin after the mixins that check permissions, and check them "
        "in dispatch; or pass replay_check="
    )
