"""Errors about options that nothing has: they name the option that is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from redlock_django.wire.servers.address import nearest

_P = ParamSpec("_P")
_T = TypeVar("_T")

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


def refuse_unknown(function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
    """Raise TypeError for an argument that a function does not have, with the one that is meant."""
    parameters = inspect.signature(function).parameters.values()
    known = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    for name in arguments:
        if name not in known:
            raise TypeError(
                f"{function.__name__}() has no argument {name!r}{hint_for_unknown(name, known)}"
            )


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
