"""The checks of arguments of decorators, with errors that name the function and the argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redlock_django.exceptions import InvalidRedlock

ArgumentCheck = Callable[[Any, str], Any]
"""It takes a value and its name, and returns the value as the program uses it; or ValueError."""


def checked(
    function: str, checks: Mapping[str, ArgumentCheck], given: Mapping[str, object]
) -> dict[str, Any]:
    """Return each argument of `checks` as its check returns it; None if it was not given.

    Raises InvalidRedlock, which names the function and the argument, for a value that is wrong.
    """
    found: dict[str, Any] = dict.fromkeys(checks)
    for name, check in checks.items():
        if (value := given.get(name)) is not None:
            try:
                found[name] = check(value, name)
            except ValueError as error:
                raise InvalidRedlock(f"{function}(): {error}") from None
    return found


def taking(arguments: str) -> ArgumentCheck:
    """Return the check of a callable that takes these arguments."""

    def check(value: Any, name: str) -> Any:
        if not callable(value):
            raise ValueError(f"{name} must be a callable ({arguments})")
        return value

    return check
