"""Validators of single values, shared by the settings and by the arguments of decorators.

Each takes a value and its name, and returns the value in the form the program uses. A bad value
raises ValueError with a message that names it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

SHORTEST_TTL = 0.1
"""Seconds; below this, drift and one slow answer already eat the whole TTL."""


def duration(value: object, name: str, *, least: float) -> float:
    """Return a number or timedelta in seconds; raise ValueError if it is less than `least`."""
    kind = f"{name} must be a number of seconds or a timedelta"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{kind}, got {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:  # an int of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{kind} that ends, got {value}")
    if value < least:
        raise ValueError(f"{name} must be at least {least:g} s, got {value:g}")
    return value


def seconds(section: Mapping[str, Any], key: str, *, least: float = 0.001) -> float:
    """Return the duration of a key in seconds."""
    return duration(section[key], key, least=least)


def mapping(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = section[key]
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be a dict, got {type(value).__name__}")
    return value


def flag(section: Mapping[str, Any], key: str) -> bool:
    value = section[key]
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be True or False, got {type(value).__name__}")
    return value


def one_of(section: Mapping[str, Any], key: str, allowed: Collection[Any]) -> Any:
    value = section[key]
    if isinstance(value, bool | float) or value not in allowed:
        raise ValueError(f"{key} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def several(section: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    value = section[key]
    if not isinstance(value, list | tuple | set | frozenset):
        raise ValueError(f"{key} must be a list, got {type(value).__name__}")
    return tuple(value)
