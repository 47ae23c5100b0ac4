"""The handlers of a view: what runs inside of `dispatch`, a `partial` or a path of django-ninja."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from django.views.generic import View

from redlock_django.web.transactions import view_name
from redlock_django.web.view_kinds import (
    api_view_function,
    class_handlers,
    class_of,
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
