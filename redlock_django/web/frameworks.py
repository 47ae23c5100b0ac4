"""REST framework and django-ninja: how their views differ, without importing them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


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
