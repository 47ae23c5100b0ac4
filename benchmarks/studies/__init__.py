"""Studies for maintainers, one file each: `python -m benchmarks NAME`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Key = TypeVar("Key")


def configure(**settings: Any) -> None:
    """Set up the test project with these settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ["SHOP_DATABASE"] = ":memory:"
    import django
    from django.conf import settings as django_settings

    for name, value in settings.items():
        setattr(django_settings, name, value)
    django.setup()


def count_bytecodes(run: Callable[[], object], key_of: Callable[[FrameType], Key]) -> Counter[Key]:
    """Return how many bytecodes of Python `run` runs in this thread, by a key of their frames."""
    counts: Counter[Key] = Counter()

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        key = key_of(frame)

        def count(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                counts[key] += 1
            return count

        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    # Python 3.12 traces bytecodes only if a frame asks for it before the trace begins.
    sys._getframe().f_trace_opcodes = True
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return counts
