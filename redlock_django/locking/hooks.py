"""The functions that extensions register when the app is loaded, and that are called later.

So `django.setup()` imports no extension.
"""

from __future__ import annotations

from collections.abc import Callable

_extensions: list[Callable[[], object]] = []


def register_extension(load: Callable[[], object]) -> None:
    """Call `load`, which imports an extension and so registers its counters, before a listing."""
    if load not in _extensions:
        _extensions.append(load)


def load_extensions() -> None:
    """Import the extensions that were registered."""
    for load in _extensions:
        load()
