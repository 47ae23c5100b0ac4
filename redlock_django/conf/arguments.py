"""The arguments of decorators and functions: their checks, and errors that name what is meant.

The arguments of a decorator may be a TypedDict: `**arguments: Unpack[...]`. Type checkers know
them, `has_arguments` refuses others at run time, and `checked` checks their values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from redlock_django.exceptions import InvalidRedlock
from redlock_django.wire.servers.address import nearest

_P = ParamSpec("_P")
_T = TypeVar("_T")

ArgumentCheck = Callable[[Any, str], Any]
"""It takes a value and its name, and returns the value as the program uses it; or ValueError."""

_USES = {"wait": "wait for how long to wait for the lock", "ttl": "ttl for how long it lives"}
_ELSEWHERE = {
    "timeout": ("wait", "ttl"),
    "blocking_timeout": ("wait",),
    "blocking": ("wait",),
    "expire": ("ttl",),
    "expires": ("ttl",),
}
"""The options that other locks have, with ours that may be meant."""


def is_option_of_other_locks(name: str) -> bool:
    """Return whether locks of other libraries have an option, and ours has another name."""
    return name in _ELSEWHERE


def hint_for_unknown(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an unknown option: which one is meant, if that is known."""
    if uses := [_USES[option] for option in _ELSEWHERE.get(name, ()) if option in known]:
        return f". Use {', and '.join(uses)}"
    return nearest(name, known)


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


def has_arguments(names: type) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Make a function refuse `**arguments` that a TypedDict has not; help() shows those it has."""

    def declare(function: Callable[_P, _T]) -> Callable[_P, _T]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in names.__annotations__.items()
        ]
        shown = signature.replace(parameters=[*own, *named])
        known = _keywords(shown)

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs:
                if name not in known:
                    raise _unknown(function, name, known)
            return function(*args, **kwargs)

        called.__signature__ = shown  # type: ignore[attr-defined]
        return called

    return declare


def refuse_unknown(function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
    """Raise TypeError for an argument that a function does not have, with the one that is meant."""
    known = _keywords(inspect.signature(function))
    for name in arguments:
        if name not in known:
            raise _unknown(function, name, known)


def _keywords(signature: inspect.Signature) -> list[str]:
    """Return the parameters that an argument with a name may have."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return [one.name for one in signature.parameters.values() if one.kind not in positional]


def _unknown(function: Callable[..., Any], name: str, known: Collection[str]) -> TypeError:
    hint = hint_for_unknown(name, known)
    return TypeError(f"{function.__name__}() has no argument {name!r}{hint}")


def helps_with_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make the error about an unknown argument of a function name the argument that is meant."""

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            refuse_unknown(function, kwargs)
            raise

    return called
