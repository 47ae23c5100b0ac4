"""The kinds of views: plain, of REST framework or django-ninja, async, inside decorators.

The frameworks are not imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any


class Framework(Enum):
    """A framework that authenticates the user inside of its views."""

    REST_FRAMEWORK = "REST framework"
    NINJA = "django-ninja"


class TransactionMarker(set[str]):
    """The `_non_atomic_requests` of a view that opens its own transactions.

    As a set it claims to contain every database alias, so Django opens no transaction for the
    view. Its real content is the aliases that the user excluded with
    `@transaction.non_atomic_requests`, under the lock decorator or above it.
    """

    __slots__ = ()

    def __contains__(self, alias: object) -> bool:
        return True


def transaction_marker(view: Callable[..., Any]) -> TransactionMarker:
    """Return the marker for the wrapper of a view; a view that has one shares it."""
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded if isinstance(excluded, TransactionMarker) else TransactionMarker(excluded)


def class_of(view: object) -> type | None:
    """Return the class whose `as_view()` made a view, or None."""
    # View sets of REST framework have no `view_class`.
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return owner if isinstance(owner, type) else None


def authenticating_framework(view: Callable[..., Any], owner: object = None) -> Framework | None:
    """Return the framework that authenticates the user inside of a view, or None.

    `owner` is the instance whose method the view is, or None.
    """
    if hasattr(class_of(view) or type(owner), "initialize_request"):
        return Framework.REST_FRAMEWORK
    return Framework.NINJA if getattr(operation_of(view), "auth_callbacks", None) else None


def operation_of(view: Any) -> Any:
    """Return the operation of django-ninja whose method `run` a view is, or None.

    A decorator gets that method from `@decorate_view`, and maybe inside of other decorators.
    """
    while view is not None:
        operation = getattr(view, "__self__", None)
        if hasattr(operation, "auth_callbacks"):
            return operation
        view = getattr(view, "__wrapped__", None)
    return None


def view_name(view: Callable[..., Any]) -> str:
    """Return the dotted name of a view, for messages."""
    bound = getattr(getattr(view, "func", None), "__self__", None)
    if bound is not None:  # a method that method_decorator() has bound
        return f"{view_name(type(bound))}.{getattr(view, '__name__', '?')}"
    named = getattr(operation_of(view), "view_func", None) or getattr(view, "view_class", view)
    name = getattr(named, "__qualname__", type(named).__qualname__)
    if inspect.isclass(named) and not name.endswith(named.__name__):
        name = named.__name__  # @api_view names its class after the function, by __name__ only
    return f"{getattr(named, '__module__', '?')}.{name}"


def resolve_annotations(wrapper: Callable[..., Any], view: Callable[..., Any]) -> None:
    """Set the signature of a wrapper: its view's, with objects for annotations in strings.

    django-ninja looks their names up in the module of the function that it gets: the wrapper's.
    """
    if not inspect.isfunction(view):  # method_decorator() and mixins bind one for each request
        return
    names = getattr(inspect.unwrap(view), "__globals__", {})
    try:
        signature = inspect.signature(view)
    except (NameError, TypeError, ValueError):  # a name that is missing, or no Python function
        return
    parameters = list(signature.parameters.values())
    if any(isinstance(parameter.annotation, str) for parameter in parameters):
        resolved = [p.replace(annotation=_resolved(p.annotation, names)) for p in parameters]
        wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=resolved
        )


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)  # the site's own code, as typing.get_type_hints() does
    except Exception:  # noqa: BLE001 - a name for type checkers only, or prose: it stays
        return annotation


def api_view_function(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function below `@api_view` that a handler calls; any other handler as it is."""
    if getattr(handler, "__module__", "") != "rest_framework.decorators":
        return handler
    function: Callable[..., Any] = inspect.getclosurevars(handler).nonlocals.get("func", handler)
    return function


def records_requests(view: Callable[..., Any] | None) -> bool:
    """Return whether a view has a wrapper that records requests, at any depth."""
    return any(hasattr(function, "records_requests") for function in _with_function(view))


def bound_to(view: Any) -> Any:
    """Return the instance whose method a view is, inside of any decorators, or None.

    `method_decorator` binds the method in a `partial` before it decorates it.
    """
    while view is not None:
        if (instance := getattr(getattr(view, "func", view), "__self__", None)) is not None:
            return instance
        view = getattr(view, "__wrapped__", None)
    return None


def is_async_class(view_class: type) -> bool:
    """Return whether the methods of a view class are async, although `dispatch` is no coroutine."""
    return getattr(view_class, "view_is_async", False) is True


def opens_transaction(view: object) -> bool:
    """Return whether a view acquires a lock, at any depth, and opens its transaction after that."""
    return hasattr(view, "lock_options") or getattr(view, "opens_transaction", False) is True


def has_lock(view: Callable[..., Any]) -> bool:
    """Return whether a view acquires a lock, or the function of the operation that it runs."""
    return any(map(opens_transaction, _with_function(view)))


def checks_user(view: object) -> bool:
    """Return whether a view has one of the decorators of django.contrib.auth, at any depth."""
    return any(
        hasattr(function, "login_url") and hasattr(function, "redirect_field_name")
        for function in _with_function(view)
    )


def _with_function(view: object) -> tuple[object, object]:
    """Return a view, and the function that it calls if it is the method of an operation."""
    # `@decorate_view` of django-ninja decorates that method, which lacks the attributes.
    return view, getattr(operation_of(view), "view_func", None)
