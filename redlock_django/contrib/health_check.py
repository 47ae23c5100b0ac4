"""A check for django-health-check 4: are enough masters up to acquire locks?"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from redlock_django.operate.health import (
    QuorumHealth,
    ServerHealth,
    counted,
    master_status,
    server_word,
)

try:
    from health_check.base import HealthCheck
    from health_check.exceptions import ServiceUnavailable, ServiceWarning
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.health_check needs django-health-check 4: "
        "pip install 'redlock-django[health-check]'"
    ) from error


logger = logging.getLogger("redlock_django")


@dataclass
class Redlock(HealthCheck):
    """Fail if fewer masters than a quorum can be counted; every run asks all of them.

    Locks do not suffer from a minority that cannot be counted, so it is reported only with `warn`.
    Use `warn` for monitoring, not for a load balancer: the package answers a warning with 500, too.
    The page of a health check is often public, so the names of the masters and their faults are
    only logged.
    """

    using: str = "default"
    warn: bool = False

    async def run(self) -> None:
        """Ask the masters. Raises ServiceUnavailable, ServiceWarning, InvalidRedlock."""
        statuses = await asyncio.to_thread(master_status, self.using)
        bad = [status for status in statuses if not status.counted]
        word = server_word(self.using)
        quorum = QuorumHealth.of(statuses)
        if not quorum.is_reached:
            must = f", and {quorum.needed} must agree" if quorum.servers > 1 else ""
            raise ServiceUnavailable(self._text(f"{counted(quorum, word)}{must}", bad))
        if bad and self.warn:
            raise ServiceWarning(self._text(f"{counted(quorum, word)}, which is enough", bad))

    def _text(self, summary: str, bad: list[ServerHealth]) -> str:
        reasons = _reasons(bad)
        logger.warning("health check: %s: %s", summary, reasons, extra={"using": self.using})
        return summary


def _reasons(bad: list[ServerHealth]) -> str:
    return "; ".join(
        f"{status.name} " + ", ".join(one.text for one in status.faults) for status in bad
    )
