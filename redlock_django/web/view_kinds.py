"""The kinds of views: plain, of REST framework or django-ninja, async, inside decorators.

The frameworks are not imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from asgiref.sync import iscoroutinefunction


class Framework(Enum):
    """A framework that authenticates the user inside of its views."""

    REST_FRAMEWORK = "REST framework"
    NINJA = "django-ninja"


class ViewFacts(NamedTuple):
    """The facts that are known of a view when it is decorated, before any request.

    `records_requests` is also true if a handler of its class records them, and `is_recording` only
    if the view is itself the wrapper that does so, with nothing around it.
    """

    is_async: bool
    has_lock: bool
    records_requests: bool
    is_recording: bool
    may_authenticate: bool


_facts_of_methods: WeakKeyDictionary[FunctionType, ViewFacts] = WeakKeyDictionary()


def view_facts(view: Callable[..., Any]) -> ViewFacts:
    """Return what is known of a view.

    `method_decorator` decorates the method of an instance at each request. What is known of it is
    that of its function, and is found out once.
    """
    method = _bound_by_django(view)
    if method is None:
        return _facts(view)
    facts = _facts_of_methods.get(method)
    if facts is None:
        facts = _facts_of_methods[method] = _facts(view)
    return facts


def _bound_by_django(view: Any) -> FunctionType | None:
    """Return the function whose method `method_decorator` has bound, with nothing around it."""
    if view.__class__ is not partial or view.args or view.keywords:
        return None
    method = getattr(view, "__wrapped__", None)
    is_bound = method is not None and getattr(view.func, "__func__", None) is method
    return method if is_bound and method.__class__ is FunctionType else None


def _facts(view: Callable[..., Any]) -> ViewFacts:
    handlers = [function for _, function, _ in class_handlers(view)]
    return ViewFacts(
        is_async=iscoroutinefunction(view),
        has_lock=has_lock(view),
        records_requests=any(map(records_requests, [view, *handlers])),
        is_recording=is_recording_wrapper(view),
        may_authenticate=may_authenticate(view),
    )


def class_of(view: object) -> type | None:
    """Return the class whose `as_view()` made a view, or None."""
    # View sets of REST framework have no `view_class`.
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return owner if isinstance(owner, type) else None


def class_handlers(view: object) -> Iterator[tuple[str, Callable[..., Any], frozenset[str]]]:
    """Yield the handlers of a view's class: name, function, and HTTP methods that call it."""
    owner = class_of(view)
    if owner is None:
        return
    called: dict[str, set[str]] = {name: {name} for name in getattr(owner, "http_method_names", ())}
    # The view sets of REST framework map HTTP methods to actions.
    for method, action in (getattr(view, "actions", None) or {}).items():
        called.setdefault(action, set()).add(method)
    for name, methods in called.items():
        if handler := getattr(owner, name, None):
            yield name, handler, frozenset(map(str.upper, methods))


def authenticating_framework(view: Callable[..., Any], owner: object = None) -> Framework | None:
    """Return the framework that authenticates the user inside of a view, or None.

    `owner` is the instance whose method the view is, or None.
    """
    if hasattr(class_of(view) or type(owner), "initialize_request"):
        return Framework.REST_FRAMEWORK
    return Framework.NINJA if getattr(operation_of(view), "auth_callbacks", None) else None


def is_rest_view(owner: object) -> bool:
    """Return whether an instance is a view of REST framework."""
    return owner is not None and hasattr(type(owner), "initialize_request")


def may_authenticate(view: Callable[..., Any]) -> bool:
    """Return whether `authenticating_framework` may find one for a view without an owner.

    Only that function knows: django-ninja adds what authenticates after a view is decorated.
    """
    return class_of(view) is not None or operation_of(view) is not None


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


def resolve_annotations(wrapper: Callable[..., Any], view: Callable[..., Any]) -> None:
    """Set the signature of a wrapper: its view's, with objects for annotations in strings.

    django-ninja looks their names up in the module of the function that it gets: the wrapper's.
    """
    if isinstance(view, partial):  # method_decorator() makes one for each request
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


def ninja_operations(view: Any) -> Iterator[Any]:
    """Yield the operations of django-ninja at one path, which a view of its URL runs.

    The view is a method of the path before django-ninja 1.5, and has the path in a closure since.
    """
    paths = [getattr(view, "__self__", None)]
    for cell in getattr(view, "__closure__", None) or ():
        with suppress(ValueError):  # an empty cell
            paths.append(cell.cell_contents)
    for path in paths:
        operations = getattr(path, "operations", None)
        if isinstance(operations, list):
            yield from operations


def records_requests(view: Callable[..., Any] | None) -> bool:
    """Return whether a view has a wrapper that records requests, at any depth.

    Such a wrapper has the attribute `records_requests`, whose value is the wrapper itself.
    """
    return any(hasattr(function, "records_requests") for function in _with_function(view))


def is_recording_wrapper(view: Callable[..., Any]) -> bool:
    """Return whether a view is itself a wrapper that records requests, with nothing around it."""
    function: Any = view
    while isinstance(function, partial):  # as method_decorator() binds a method
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "records_requests", None) is function


def bound_to(view: Any) -> Any:
    """Return the instance whose method a view is, inside of any decorators, or None.

    `method_decorator` binds the method in a `partial` before it decorates it.
    """
    while view is not None:
        if (instance := getattr(getattr(view, "func", view), "__self__", None)) is not None:
            return instance
        view = getattr(view, "__wrapped__", None)
    return None


# Django looks at every handler of the class each time.
_async_classes: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_async_class(view_class: type) -> bool:
    """Return whether the methods of a view class are async, although `dispatch` is no coroutine."""
    known = _async_classes.get(view_class)
    if known is None:
        known = _async_classes[view_class] = getattr(view_class, "view_is_async", False) is True
    return known


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
