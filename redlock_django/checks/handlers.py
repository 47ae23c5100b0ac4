"""The handlers of a view: what runs inside of `dispatch`, a `partial` or a path of django-ninja."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from asgiref.sync import iscoroutinefunction
from django.views.generic import View

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.web.transactions import TransactionMarker, view_name
from redlock_django.web.view_kinds import (
    api_view_function,
    class_handlers,
    class_of,
    is_async_class,
    ninja_operations,
    opens_transaction,
    records_requests,
)


class ViewHandler(NamedTuple):
    """A handler of a view: its name for messages, and the HTTP methods for which it is called.

    `given` are the keyword arguments that it gets besides those of the URL.
    """

    name: str
    function: Callable[..., Any]
    methods: frozenset[str]
    given: Mapping[str, object] = MappingProxyType({})


def handlers_of(view: Any) -> Iterator[ViewHandler]:
    """Yield the handler methods of a view class, or the functions of a django-ninja path.

    A decorated function is one, too, if the `partial`, instance or wrapper that calls it lacks its
    attributes.
    """
    yield from _operations_of(view)
    yield from _hidden_in(view)
    owner: Any = class_of(view)
    for name, function, methods in class_handlers(view):
        yield ViewHandler(f"{view_name(owner)}.{name}", api_view_function(function), methods)


def _operations_of(view: Any) -> Iterator[ViewHandler]:
    """Yield the functions of a django-ninja path."""
    for operation in ninja_operations(view):
        function = getattr(operation, "view_func", None)
        # @decorate_view decorates the operation's method `run`.
        for handler in (function, vars(operation).get("run")):
            if callable(function) and callable(handler):
                yield ViewHandler(view_name(function), handler, frozenset(operation.methods))


def _hidden_in(view: Any) -> Iterator[ViewHandler]:
    """Yield the function with attributes of this package that what calls it lacks."""
    given: dict[str, object] = {}
    while (called := called_by(view)) is not None:
        if isinstance(view, partial):
            given |= view.keywords
        if is_decorated(called) and not is_decorated(view):
            yield ViewHandler(view_name(called), called, _METHODS, given)
        view = called


_METHODS = frozenset(map(str.upper, View.http_method_names))


def called_by(view: Any) -> Any:
    """Return what a `partial`, a decorator or an instance calls, None for any other function."""
    if isinstance(view, partial):
        return view.func
    if hasattr(view, "__wrapped__"):
        return view.__wrapped__
    called = type(view).__call__
    return called if inspect.isfunction(called) else None


def is_decorated(view: Any) -> bool:
    """Return whether a view acquires a lock or records requests, at any depth."""
    return opens_transaction(view) or records_requests(view)


def atomic_aliases(view: Any) -> list[str]:
    """Return the database aliases for which Django opens the transaction of a view."""
    excluded = getattr(view, "_non_atomic_requests", ())
    if isinstance(excluded, TransactionMarker) or is_async_view(view):
        return []  # the view opens them itself, or is refused
    return TransactionMarker(excluded).atomic_aliases()


def transactions_around(view: Any, handler: ViewHandler) -> dict[str, str]:
    """Return the aliases of the transactions that are open around a handler, and what opens them.

    `view` is what the URL runs, with the lock of a rule.
    """
    if is_async_view(view):
        return {}
    marker = getattr(view, "_non_atomic_requests", None)
    if not isinstance(marker, TransactionMarker):
        return dict.fromkeys(atomic_aliases(view), "ATOMIC_REQUESTS")
    around: dict[str, str] = {}
    # LockAPIMixin has the marker, too, and leaves the transactions to the handlers.
    if opens_transaction(view) or records_requests(view):
        around = dict.fromkeys(marker.atomic_aliases(), "ATOMIC_REQUESTS")
    records = records_around(view, handler)
    if records is not None:
        around.setdefault(records.database, "@idempotent")
    return around


def records_around(view: Any, handler: ViewHandler) -> IdempotencySettings | None:
    """Return the settings of the `@idempotent` around a handler, None if it records nothing."""
    options = getattr(view, "idempotent_options", None)
    if not isinstance(options, IdempotentOptions):
        return None
    try:
        settings = options.settings()
    except InvalidRedlock:
        return None  # E001 reports it.
    return settings if handler.methods & settings.methods else None


def is_async_view(view: Any) -> bool:
    """Return whether a view, or the class whose `as_view()` made it, is async."""
    owner = class_of(view)
    return iscoroutinefunction(view) or (owner is not None and is_async_class(owner))
