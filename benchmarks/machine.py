"""A description of the machine, without which figures mean nothing."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import django
import hiredis
import redis


def describe() -> dict[str, Any]:
    """Return cores, kernel, versions, date and load."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "django": django.__version__,
        "redis-py": redis.__version__,
        "hiredis": hiredis.__version__,
        "load at the start": load(),
    }


def load() -> str:
    """Return the load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{each:.2f}" for each in os.getloadavg())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
