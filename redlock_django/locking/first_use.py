"""The functions that are called when an alias of REDLOCK is used for the first time.

An extension registers itself here when the app is loaded, and reads no settings before it must.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.conf.settings import AliasSettings

_calls: list[Callable[[AliasSettings], object]] = []


def call_at_first_use(call: Callable[[AliasSettings], object]) -> None:
    """Call a function with the settings of each alias when it is first used, or used again."""
    if call not in _calls:
        _calls.append(call)


def first_used(settings: AliasSettings) -> None:
    """Call the functions that were registered."""
    for call in _calls:
        call(settings)
