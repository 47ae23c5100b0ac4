"""`running_loop()`: the loop that runs in this thread, or None.

asyncio.get_running_loop() raises an exception where there is none. That takes ten times as long,
and most locks ask several times.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from asyncio.events import _get_running_loop
from collections.abc import Callable

running_loop: Callable[[], AbstractEventLoop | None] = _get_running_loop
