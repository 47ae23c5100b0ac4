"""The views of django-ninja, without importing it."""

from __future__ import annotations

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
