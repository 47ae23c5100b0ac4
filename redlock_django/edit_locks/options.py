"""The options of EditLockMixin and EditLockViewMixin, and what their subclasses override."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from redlock_django.edit_locks.presence_pages import CONFLICTS
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks


def check_options(cls: type[Any], mixin: type[Any]) -> None:
    """Raise InvalidRedlock for an option `edit_…` that does not exist or has a wrong value."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    known = [one for one in vars(mixin) if one.startswith("edit_")]
    for option in vars(cls):
        close = get_close_matches(option, known, n=1, cutoff=0.8)
        if option.startswith("edit_") and option not in known and close:
            raise InvalidRedlock(
                f"{name}: {mixin.__name__} has no option {option!r}. Write {close[0]!r}"
            )
    check_values(name, {option: getattr(cls, option) for option in known})


def check_values(name: str, values: Mapping[str, Any]) -> None:
    """Raise InvalidRedlock if an option of a class or of `as_view()` has a wrong value."""
    conflict = values.get("edit_conflict", "warn")
    if conflict not in CONFLICTS:
        raise InvalidRedlock(
            f"{name}: edit_conflict must be 'warn' or 'refuse', got {conflict!r}. Write "
            "edit_conflict = 'warn'"
        )
    for option in ("edit_ignore", "edit_reading_actions"):
        value = values.get(option, ())
        if isinstance(value, str) or not all(isinstance(one, str) for one in value):
            raise InvalidRedlock(
                f"{name}: {option} must be a list of names, got {value!r}. Write {option} = "
                f"[{value!r}]"
            )


def check_alias(name: str, using: str) -> None:
    """Raise InvalidRedlock if `edit_using` is not an alias of REDLOCK."""
    if using not in (known := [*locks]):
        raise InvalidRedlock(
            f"{name}: edit_using is {using!r}, which is not in REDLOCK; there is: "
            + ", ".join(map(repr, known))
        )


def overrides(
    cls: type[Any], mixin: type[Any], hooks: Collection[str]
) -> Iterator[tuple[type[Any], str]]:
    """Yield the methods of the mixin that a subclass overrides without a call of super()."""
    for base in cls.__mro__[: cls.__mro__.index(mixin)]:
        for hook in hooks:
            if hook in vars(base) and not _calls_super(vars(base)[hook]):
                yield base, hook


def _calls_super(method: Any) -> bool:
    """Return whether the code of a method calls super()."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and "super" in code.co_names
