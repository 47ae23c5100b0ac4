"""Validators of single values, shared by the settings and by the arguments of decorators.

Each takes a value and its name, and returns the value in the form the program uses. A bad value
raises ValueError with a message that names it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from redlock_django.engine.protocol.slots import MOST_SLOTS
from redlock_django.wire.servers.address import nearest

SHORTEST_TTL = 0.1
"""Seconds. In a shorter TTL, drift and one slow answer use up the whole validity."""

LONGEST_WAIT = 7 * 86_400.0
"""Seconds. Operating systems and databases count milliseconds in 31 bits: 24 days."""

LONGEST = 365 * 86_400.0
"""Seconds: the longest duration of any other kind. Threads can sleep for so long."""

LONGEST_RETENTION = 100 * LONGEST
"""Seconds. The end of a record must be a date: before the year 10,000."""


def duration(value: object, name: str, *, least: float, most: float = LONGEST) -> float:
    """Return a number or timedelta in seconds; raise ValueError unless `least` <= it <= `most`."""
    # As nearly always, and in a third of the time: every lock checks its durations.
    if type(value) is int and 0 <= value < 2**53:
        value = float(value)
    if type(value) is float and least <= value <= most:
        return value
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
    if value > most:
        days = most / 86_400
        raise ValueError(f"{name} must be at most {most:.0f} s ({days:.0f} days), got {value:g}")
    return value


def minimum_hold(value: object, ttl: object) -> float:
    """Return `min_hold` in seconds, 0 for None; raise ValueError if it is longer than a `ttl`."""
    if value is None:
        return 0.0
    least = duration(value, "min_hold", least=0.0)
    if ttl is not None and least > (given := duration(ttl, "ttl", least=SHORTEST_TTL)):
        raise ValueError(
            f"min_hold is {least:g} s and ttl is {given:g} s, after which the lock of a process "
            "that dies is free: raise ttl, or leave it out, and it is long enough"
        )
    return least


def permits(value: object, name: str) -> int:
    """Return a number of slots: a whole number from 1 to 1,000."""
    if type(value) is not int or not 1 <= value <= MOST_SLOTS:
        raise ValueError(f"{name} must be a whole number from 1 to {MOST_SLOTS:,}, got {value!r}")
    return value


def seconds(
    section: Mapping[str, Any], key: str, *, least: float = 0.001, most: float = LONGEST
) -> float:
    """Return the duration of a key in seconds."""
    return duration(section[key], key, least=least, most=most)


def choice(value: object, name: str, allowed: Collection[Any]) -> Any:
    """Return `value` if it is one of `allowed`."""
    if isinstance(value, bool | float) or value not in allowed:
        texts = [one for one in allowed if isinstance(one, str)]
        hint = nearest(value, texts) if isinstance(value, str) else ""
        known = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} must be one of {known}, got {value!r}{hint}")
    return value


def http_methods(value: object, name: str, allowed: Collection[str]) -> frozenset[str]:
    """Return HTTP methods in upper case; there is at least one, and all are in `allowed`."""
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        raise ValueError(f"{name} must be a list such as ['POST']")
    upper = frozenset(str(method).upper() for method in value)
    if unknown := sorted(upper.difference(allowed)):
        known = ", ".join(map(repr, sorted(allowed)))
        raise ValueError(f"{name} may contain {known}, got {unknown[0]!r}")
    return upper


def mapping(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the dict of a key."""
    value = section[key]
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be a dict, got {type(value).__name__}")
    return value


def flag(section: Mapping[str, Any], key: str) -> bool:
    """Return the True or False of a key."""
    value = section[key]
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be True or False, got {type(value).__name__}")
    return value


def string(section: Mapping[str, Any], key: str) -> str:
    """Return the string of a key, which is not empty."""
    value = section[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a string that is not empty, got {value!r}")
    return value


def several(section: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """Return the list of a key."""
    value = section[key]
    if not isinstance(value, list | tuple | set | frozenset):
        raise ValueError(f"{key} must be a list, got {type(value).__name__}")
    return tuple(value)


def whole(section: Mapping[str, Any], key: str, unit: str) -> int:
    """Return a whole number, 0 or more; `unit` is what it counts, for the error."""
    value = section[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} must be a number of {unit}, got {value!r}")
    return value
