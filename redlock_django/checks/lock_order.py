"""Checks of the code that runs inside and outside of a view's lock."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.checks.handlers import ViewHandler, called_by, is_decorated
from redlock_django.exceptions import InvalidRedlock
from redlock_django.web.options import LockOptions
from redlock_django.web.transactions import (
    TransactionMarker,
    not_adjacent_error,
    place_of_lock,
    transaction_marker,
    view_name,
)
from redlock_django.web.view_kinds import (
    Framework,
    authenticating_framework,
    checks_user,
    class_of,
    is_verified,
    opens_transaction,
    records_requests,
)

_VERIFIED_BY = "redlock_django.web.verified_by"
_CHECKING_ONLY = ("django.", "rest_framework.", "ninja.", _VERIFIED_BY)

_HINT = (
    "Put @lock_resource below @verified_by and login and permission decorators, LockResourceMixin "
    "after the mixins that check permissions, and in REST framework @lock_resource on handlers "
    "with LockAPIMixin. A rule locks before the view checks anything: use the decorator instead."
)


def login_inside_lock(
    view: Any, handlers: Iterable[ViewHandler], *, rule: Any
) -> Iterator[CheckMessage]:
    """Yield W014 if a view checks the user or a signature only after its lock is acquired.

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


def locked_twice(view: Any, handler: ViewHandler) -> Iterator[CheckMessage]:
    """Yield E055 for a handler that locks a name that the lock around it holds.

    `view` is what the URL runs, with the lock of a rule.
    """
    around: LockOptions | None = getattr(view, "lock_options", None)
    inside: LockOptions | None = getattr(handler.function, "lock_options", None)
    if around is None or inside is None or around.using != inside.using:
        return
    both = [options.methods for options in (around, inside) if options.methods is not None]
    if not handler.methods.intersection(*both):
        return
    names = {template.identity for template in around.templates}
    for template in inside.templates:
        if template.identity in names:
            yield checks.Error(
                f"{handler.name} locks {template.text!r}, which {place_of_lock(view)} has locked "
                "already when it is called, so every request fails.",
                hint="Lock one name in one place: remove it from one of them.",
                id="redlock_django.E055",
            )


def conditions_before_lock(view: Any, handlers: Iterable[ViewHandler]) -> Iterator[CheckMessage]:
    """Yield W057 for @condition, @etag or @last_modified above the lock of a view.

    It compares If-Match before the lock is acquired, with what the holder of the lock may change.
    """
    owner = getattr(view, "view_class", None)
    functions = [view, getattr(owner, "dispatch", None), *(each.function for each in handlers)]
    for name in filter(None, dict.fromkeys(map(_below_condition, functions))):
        yield checks.Warning(
            f"{name}: @condition, @etag or @last_modified is above @lock_resource or @idempotent, "
            "so If-Match is compared before the lock is acquired: of two requests with one ETag, "
            "both may pass. A retry of an idempotent request is answered 412, and not replayed.",
            hint="Put it directly on the view, below @lock_resource and @idempotent. If the view "
            "changes nothing, silence this check.",
            id="redlock_django.W057",
        )


def _below_condition(view: Any) -> str | None:
    """Return the name of what a view locks or records with a condition of Django around it."""
    name, found = None, False
    for function in called_functions(view):
        module = module_of(function)
        if is_decorated(function):
            name = name or view_name(function)
            if module.startswith("redlock_django.") and module != _VERIFIED_BY:
                return name if found else None
        code = getattr(function, "__code__", None)
        found = found or (
            module == "django.views.decorators.http"
            and "_pre_process_request" in getattr(code, "co_freevars", ())
        )
    return None


def refused_decorators(view: Any, handlers: Iterable[ViewHandler]) -> Iterator[CheckMessage]:
    """Yield E061 for decorators of a class that are refused at each request, not at import.

    `method_decorator` decorates a method at each request, and the decorator of a `dispatch` sees no
    handler. On a function, the same decorators are refused when it is decorated.
    """
    owner: type = class_of(view) or object
    functions = [handler.function for handler in handlers]
    dispatches = [vars(base).get("dispatch") for base in owner.__mro__]
    errors = [_refusal(function, owner) for function in (view, *dispatches, *functions)]
    is_locked_class = owner is not object and opens_transaction(view)
    if is_locked_class and not records_requests(view) and any(map(records_requests, functions)):
        errors.append(not_adjacent_error(view))
    for text in dict.fromkeys(str(error) for error in errors if error is not None):
        yield checks.Error(text, id="redlock_django.E061")


def _refusal(function: Any, owner: type) -> InvalidRedlock | None:
    """Return the error with which a decorator of this package refuses a method, or None."""
    while opens_transaction(function) or records_requests(function):
        try:
            function = _applied(function, owner)
        except InvalidRedlock as error:
            return error
        except Exception:  # noqa: BLE001 - of a decorator of the site: the request finds out
            return None
        function = getattr(function, "__wrapped__", None)
    return None


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


def lost_exclusions(view: Any) -> Iterator[CheckMessage]:
    """Yield W063 for an exclusion of ATOMIC_REQUESTS that the view of a class does not have.

    `method_decorator` gives a method the attributes of each decorator, and the marker of a lock
    replaces that of a decorator below it.
    """
    dispatch = getattr(class_of(view), "dispatch", None)
    if not is_decorated(dispatch):
        return
    meant = transaction_marker(_in_order(dispatch))
    for alias in transaction_marker(view).atomic_aliases():
        if meant.excludes(alias):
            yield checks.Warning(
                f"{view_name(view)}: @transaction.non_atomic_requests is below @lock_resource or "
                "@idempotent in a list of @method_decorator, where it has no effect, so "
                f"ATOMIC_REQUESTS of the database {alias!r} applies to the view.",
                hint="Put it first in the list.",
                id="redlock_django.W063",
            )


def called_functions(view: Any) -> Iterator[Any]:
    """Yield a view, what it calls, what that calls, and so on.

    The decorators of `method_decorator` are called, if one of them locks or records.
    """
    while view is not None:
        function = _in_order(view) if is_decorated(view) else view
        yield function
        view = called_by(function)


def module_of(view: Any) -> str:
    """Return the module in which a wrapper is defined; `__module__` is that of the view.

    Of an instance, it is that of its `__call__`; a `partial` has none.
    """
    function = view if hasattr(view, "__globals__") else type(view).__call__
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


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
        if checks_user(dispatch) or is_verified(dispatch):
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
    """Return the decorator of a view, at any depth, that checks the user or a signature."""
    if checks_user(view):
        return "a login or permission decorator"
    return "@verified_by" if is_verified(view) else None


def _locked(view: Any) -> Any:
    """Return the wrapper that `@lock_resource` has made, which may be inside of others."""
    view = _in_order(view)
    while hasattr(inner := _in_order(getattr(view, "__wrapped__", None)), "lock_options"):
        view = inner
    return view


def _in_order(function: Any) -> Any:
    """Return what `method_decorator` calls: its decorators, each around the next.

    Django applies them again for each request, to a method of its instance, and gives its own
    wrapper the attributes of all of them, without their order.
    """
    try:
        return _applied(function)
    except Exception:  # noqa: BLE001 - `refused_decorators` reports those of this package
        return function


def _applied(function: Any, owner: type = object) -> Any:
    """Return what `method_decorator` makes of a method for an instance of its class `owner`.

    Raises what its decorators raise. Any other function is returned as it is.
    """
    if module_of(function) != "django.utils.decorators":
        return function
    kept = inspect.getclosurevars(function).nonlocals
    if not {"decorators", "method"} <= kept.keys():
        return function
    method = kept["method"]
    bound: Any = functools.partial(method.__get__(object.__new__(owner)))
    functools.update_wrapper(bound, method)  # as Django does
    for decorate in kept["decorators"]:
        bound = decorate(bound)
    return bound
