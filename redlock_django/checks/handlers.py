"""The handlers of a view: the methods of its class, or the functions of a path of django-ninja."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from redlock_django.web.view_kinds import (
    api_view_function,
    class_handlers,
    class_of,
    ninja_operations,
    view_name,
)


class ViewHandler(NamedTuple):
    """A handler of a view: its name for messages, and the HTTP methods for which it is called."""

    name: str
    function: Callable[..., Any]
    methods: frozenset[str]


def handlers_of(view: Any) -> Iterator[ViewHandler]:
    """Yield the handler methods of a view class, or the functions of a django-ninja path."""
    for operation in ninja_operations(view):
        function = getattr(operation, "view_func", None)
        # @decorate_view decorates the operation's method `run`.
        for handler in (function, vars(operation).get("run")):
            if callable(function) and callable(handler):
                yield ViewHandler(view_name(function), handler, frozenset(operation.methods))
    owner: Any = class_of(view)
    for name, function, methods in class_handlers(view):
        yield ViewHandler(f"{view_name(owner)}.{name}", api_view_function(function), methods)
