"""The check of what checks the user inside of a view's lock (W014)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.checks.handlers import ViewHandler
from redlock_django.web.options import LockOptions
from redlock_django.web.view_kinds import (
    Framework,
    authenticating_framework,
    checks_user,
    opens_transaction,
    view_name,
)

_HINT = (
    "Put @lock_resource below login and permission decorators, LockResourceMixin after the mixins "
    "that check permissions, and in REST framework @lock_resource on handlers with LockAPIMixin. "
    "A rule locks before the view checks anything: use the decorator instead."
)


def login_inside_lock(
    view: Any, handlers: Iterable[ViewHandler], *, rule: Any
) -> Iterator[CheckMessage]:
    """Yield W014 if a view checks the user only after its lock is acquired.

    `handlers` are those of its class, or the functions of its path. `rule` is the view locked by a
    rule, around everything, or None.
    """
    inside = [(view_name(view), _login_check(view, by_rule=rule is not None))]
    if inside[0][1] is None:
        around = getattr(view if rule is None else rule, "lock_options", None)
        inside = [(handler.name, _check_of_handler(handler, around)) for handler in handlers]
    for name, check in inside:
        if check is not None:
            yield checks.Warning(
                f"{name}: {check} is inside of the lock, so clients that it would refuse can hold "
                "the lock.",
                hint=_HINT,
                id="redlock_django.W014",
            )


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
        locked, bases = _inside_dispatch(owner)
    if (decorator := _checking_decorator(locked)) is not None:
        return decorator
    # A class that inherits from AccessMixin has imported it.
    mixins: Any = sys.modules.get("django.contrib.auth.mixins")
    for base in bases:
        dispatch = vars(base).get("dispatch")
        if dispatch is None:
            continue
        if mixins is not None and issubclass(base, mixins.AccessMixin):
            return base.__name__
        if checks_user(dispatch):
            return base.__name__
    return None


def _inside_dispatch(owner: type) -> tuple[Any, tuple[type, ...]]:
    """Return what the lock around the `dispatch` of a class runs, and the classes further in.

    What it runs is the wrapper or function directly inside of it, None for LockResourceMixin.
    """
    bases = owner.__mro__
    # A decorator of a subclass has the attributes of the dispatch that it decorates.
    locking = [base for base in bases if opens_transaction(vars(base).get("dispatch"))]
    if not locking:
        return None, ()
    inside = getattr(_locked(vars(locking[-1])["dispatch"]), "__wrapped__", None)
    return inside, bases[bases.index(locking[-1]) + 1 :]


def _check_of_handler(handler: ViewHandler, around: LockOptions | None) -> str | None:
    """Return the decorator that checks the user inside of the lock of a handler, or None.

    `around` are the options of a lock around its whole view, or None.
    """
    if around is not None:
        is_locked = around.methods is None or handler.methods & around.methods
        return _checking_decorator(handler.function) if is_locked else None
    if not hasattr(handler.function, "lock_options"):
        return None
    return _checking_decorator(getattr(_locked(handler.function), "__wrapped__", None))


def _checking_decorator(view: Any) -> str | None:
    """Return the decorator of a view, at any depth, that checks the user, or None."""
    return "a login or permission decorator" if checks_user(view) else None


def _locked(view: Any) -> Any:
    """Return the wrapper that `@lock_resource` has made, which may be inside of others."""
    view = _in_order(view)
    while hasattr(inner := _in_order(getattr(view, "__wrapped__", None)), "lock_options"):
        view = inner
    return view


def _in_order(function: Any) -> Any:
    """Return what `method_decorator` calls: its decorators, each around the next.

    Django applies them again for each request, to a method of its instance, and gives its own
    wrapper the attributes of all of them, without their order. Any other function is returned as it
    is, and so is one whose decorators raise an error, as they do at each request.
    """
    if getattr(function, "__globals__", {}).get("__name__") != "django.utils.decorators":
        return function
    kept = inspect.getclosurevars(function).nonlocals
    if not {"decorators", "method"} <= kept.keys():
        return function
    method = kept["method"]
    bound: Any = functools.partial(method.__get__(object()))
    functools.update_wrapper(bound, method)  # as Django does
    try:
        for decorate in kept["decorators"]:
            bound = decorate(bound)
    except Exception:  # noqa: BLE001
        return function
    return bound
