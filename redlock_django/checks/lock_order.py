"""Checks of the code that runs inside and outside of a view's lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.web.frameworks import Framework, authenticating_framework
from redlock_django.web.request_state import checks_user, is_verified
from redlock_django.web.transactions import TransactionMarker, view_name

_CHECKING_ONLY = ("django.", "rest_framework.", "ninja.", "redlock_django.web.verified_by")

_HINT = (
    "Put @lock_resource below @verified_by and login and permission decorators, LockResourceMixin "
    "after the mixins that check permissions, and in REST framework @lock_resource on handlers "
    "with LockAPIMixin. A rule locks before the view checks anything: use the decorator instead."
)


def login_inside_lock(view: Any, *, by_rule: bool) -> Iterator[CheckMessage]:
    """Yield W014 if a view checks the user or a signature only after its lock is acquired.

    `by_rule` is whether a rule locks it, around everything.
    """
    inside = _login_check(view, by_rule=by_rule)
    if inside is None:
        return
    yield checks.Warning(
        f"{view_name(view)}: {inside} is inside of the lock, so clients that it would refuse can "
        "hold the lock.",
        hint=_HINT,
        id="redlock_django.W014",
    )


def decorators_outside_transaction(view: Any) -> Iterator[CheckMessage]:
    """Yield W016 for a decorator of the site above the lock, if Django would have a transaction.

    The lock comes before the transaction, so such a decorator is outside of both. Decorators of
    Django and of frameworks, which check something and write nothing, are not reported.
    """
    marker = getattr(view, "_non_atomic_requests", None)
    if not (isinstance(marker, TransactionMarker) and marker.atomic_aliases()):
        return
    while module := module_of(view):
        is_checking = module.startswith(_CHECKING_ONLY)
        if module.startswith("redlock_django.") and not is_checking:
            return
        if not is_checking:
            yield checks.Warning(
                f"{view_name(view)}: a decorator in {module} is above the lock, so it runs outside "
                "of the transaction of ATOMIC_REQUESTS.",
                hint="Put it directly on the view, below @lock_resource or @idempotent, if it "
                "writes to the database. Otherwise silence this check.",
                id="redlock_django.W016",
            )
        view = getattr(view, "__wrapped__", None)


def module_of(view: Any) -> str:
    """Return the module in which a wrapper is defined; `__module__` is that of the view."""
    return str(getattr(view, "__globals__", {}).get("__name__", ""))


def _login_check(view: Any, *, by_rule: bool) -> str | None:
    """Return what checks the user inside of the lock of a view, or None."""
    if not (by_rule or hasattr(view, "lock_options")):
        return None
    if authenticating_framework(view) is Framework.REST_FRAMEWORK:
        return "REST framework's authentication"
    owner = getattr(view, "view_class", None)
    locked = view if by_rule else _locked(view)
    bases: tuple[type, ...] = () if owner is None else owner.__mro__
    around_class = hasattr(getattr(locked, "__wrapped__", None), "view_class")
    if owner is not None and not (by_rule or around_class):
        # Of several decorators of dispatch, it is unknown which are inside and which outside.
        # After LockResourceMixin; this is its mark.
        bases = tuple(dropwhile(lambda base: not _is_lock_mixin(base), bases))
    elif checks_user(locked):
        return "a login or permission decorator"
    elif is_verified(locked):
        return "@verified_by"
    # A class that inherits from AccessMixin has imported it.
    mixins: Any = sys.modules.get("django.contrib.auth.mixins")
    for base in bases:
        dispatch = vars(base).get("dispatch")
        if dispatch is None:
            continue
        if mixins is not None and issubclass(base, mixins.AccessMixin):
            return base.__name__
        if is_verified(dispatch) and not _is_lock_mixin(base):
            return base.__name__
    return None


def _is_lock_mixin(base: type) -> bool:
    return getattr(vars(base).get("dispatch"), "opens_transaction", False) is True


def _locked(view: Any) -> Any:
    """Return the wrapper that `@lock_resource` has made, which may be inside of others."""
    while hasattr(getattr(view, "__wrapped__", None), "lock_options"):
        view = view.__wrapped__
    return view
