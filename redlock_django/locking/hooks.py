"""The functions that extensions register when the app is loaded, and that are called later.

So `django.setup()` imports no extension, and no extension reads settings before it must.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.conf.settings import AliasSettings

_calls: list[Callable[[AliasSettings], object]] = []
_extensions: list[Callable[[], object]] = []


def call_at_first_use(call: Callable[[AliasSettings], object]) -> None:
    """Call a function with the settings of each alias when it is first used, or used again."""
    if call not in _calls:
        _calls.append(call)


def first_used(settings: AliasSettings) -> None:
    """Call the functions that were registered."""
    for call in _calls:
        call(settings)


def register_extension(load: Callable[[], object]) -> None:
    """Call `load`, which imports an extension and so registers its counters, before a listing."""
    if load not in _extensions:
        _extensions.append(load)


def load_extensions() -> None:
    """Import the extensions that were registered."""
    for load in _extensions:
        load()
