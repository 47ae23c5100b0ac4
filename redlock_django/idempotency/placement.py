"""Where `@idempotent` may stand: outside of the transaction, inside of the permissions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import IdempotencySettings
from redlock_django.web.call import Call
from redlock_django.web.request_state import records_requests
from redlock_django.web.transactions import open_blocks, view_name


def check_place(call: Call, settings: IdempotencySettings, *, is_async: bool) -> None:
    """Raise InvalidRedlock where a request could not be recorded with its effects."""
    name = view_name(call.view)
    if call.wrapped and not hasattr(call.owner, "finish_under_lock"):
        raise InvalidRedlock(
            f"{name}: for REST framework, @idempotent needs "
            "redlock_django.contrib.drf.LockAPIMixin as the first base class of the view"
        )
    if not call.wrapped and hasattr(call.owner, "initialize_request"):
        raise InvalidRedlock(
            f"{name}: in REST framework, put @idempotent on a handler method or an action, which "
            "run after authentication, and not on dispatch"
        )
    if is_async:
        return
    if blocks := open_blocks():
        raise InvalidRedlock(
            f"{name} is called inside an atomic block of {blocks[0].alias!r}, so that @idempotent "
            f"cannot know what is committed. {OUTSIDE}"
        )
    excluded = call.marker is not None and call.marker.excludes(settings.database)
    if settings.store == "database" and excluded:
        raise InvalidRedlock(
            f"{name} is marked with @transaction.non_atomic_requests, but @idempotent records it "
            f"in its own transaction of {settings.database!r}; remove the mark, or use "
            "store='cache', which knows less of what was committed"
        )


OUTSIDE = (
    "Put @idempotent above @transaction.atomic; for a class under ATOMIC_REQUESTS, use "
    'IdempotentMixin or @method_decorator(idempotent, name="dispatch"); and let decorators above '
    "it use functools.wraps, so that Django sees that the view opens its own transaction"
)


def permissions_inside(view: Callable[..., Any], owner: type | None = None) -> str | None:
    """Name what checks a user's rights only after a replay would have been given, or None.

    `view` is what is decorated, `owner` the class whose `dispatch` it is, if it is one.
    """
    if hasattr(view, "login_url") and hasattr(view, "redirect_field_name"):
        return "a login or permission decorator"
    classes: tuple[type, ...] = getattr(view, "view_class", object).__mro__
    if owner is not None:
        classes = owner.__mro__
        while classes and not records_requests(vars(classes[0]).get("dispatch")):
            classes = classes[1:]
    # A class that inherits from it has imported it; by itself it asks for django.contrib.auth.
    mixins: Any = sys.modules.get("django.contrib.auth.mixins")
    for cls in classes if mixins is not None else ():
        own = vars(cls).get("dispatch")
        if issubclass(cls, mixins.AccessMixin) and own is not None and not records_requests(own):
            return cls.__name__
    return None


def replay_too_early(view: Callable[..., Any], inside: str) -> InvalidRedlock:
    """Give the error for a view with `permissions_inside`."""
    return InvalidRedlock(
        f"{view_name(view)}: {inside} stands inside of @idempotent, so that a user who has lost "
        "the right to it would still be given a replay. Put @idempotent below login and "
        "permission decorators; in a class, put IdempotentMixin behind the mixins that check "
        "them; or give replay_check="
    )
