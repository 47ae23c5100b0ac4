"""The description of its holder that a lock's value carries."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping

from redlock_django.wire.clock import wall_ns

_HOST = socket.gethostname()[:64]
_APP = os.path.basename(sys.argv[0] if sys.argv else "")[:64]


def holder_json(extra: Mapping[str, str]) -> str:
    """Return compact JSON about this process, the time in seconds since 1970, and `extra`.

    Values of `extra` are cut to 200 characters.
    """
    holder = {
        "host": _HOST,
        "pid": os.getpid(),
        "app": _APP,
        "at": round(wall_ns() / 1e9, 3),
        **{key: str(value)[:200] for key, value in extra.items()},
    }
    return json.dumps(holder, separators=(",", ":"))
