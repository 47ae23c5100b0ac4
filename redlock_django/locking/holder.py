"""The description of its holder that a lock's value carries."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from functools import cache

from redlock_django.wire.clock import wall_ns

_HOST = socket.gethostname()[:64]
_APP = os.path.basename(sys.argv[0] if sys.argv else "")[:64]
_encode = json.JSONEncoder(separators=(",", ":")).encode


@cache
def _process_json() -> str:
    """Return the JSON about this process, which is the same for all its locks, without the "}"."""
    return _encode({"host": _HOST, "pid": os.getpid(), "app": _APP})[:-1]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process_json.cache_clear)


def holder_json(extra: Mapping[str, str], min_hold: float = 0.0) -> str:
    """Return compact JSON about this process, the time in seconds since 1970, and `extra`.

    `min_hold` is the minimum hold in seconds, if there is one. Values of `extra` are cut to 200
    characters.
    """
    about = f'{_process_json()},"at":{wall_ns() / 1e9:.3f}'
    if min_hold:
        about += f',"min_hold":{min_hold:.3f}'
    # JSON allows a name twice, and readers take the last: `extra` may replace what is above.
    for key, value in extra.items():
        about += f",{_encode(key)}:{_encode(str(value)[:200])}"
    return about + "}"
