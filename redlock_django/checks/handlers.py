"""The handlers of a view: the methods of its class, or the functions of a path of django-ninja."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from redlock_django.web.view_kinds import (
    api_view_function,
    class_of,
    view_name,
)


class ViewHandler(NamedTuple):
    """A handler of a view: its name for messages, and the HTTP methods for which it is called."""

    name: str
    function: Callable[..., Any]
    methods: frozenset[str]


def handlers_of(view: Any) -> Iterator[ViewHandler]:
    """Yield the handler methods of a view class, or the functions of a django-ninja path."""
    for operation in _ninja_operations(view):
        function = getattr(operation, "view_func", None)
        # @decorate_view decorates the operation's method `run`.
        for handler in (function, vars(operation).get("run")):
            if callable(function) and callable(handler):
                yield ViewHandler(view_name(function), handler, frozenset(operation.methods))
    owner: Any = class_of(view)
    for name, function, methods in _class_handlers(view):
        yield ViewHandler(f"{view_name(owner)}.{name}", api_view_function(function), methods)


def _class_handlers(view: object) -> Iterator[tuple[str, Callable[..., Any], frozenset[str]]]:
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


def _ninja_operations(view: Any) -> Iterator[Any]:
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
