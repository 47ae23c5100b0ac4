"""Dialing: one thread connects to one master until it works.

Connecting blocks: the resolver, a TLS handshake and each answer of the server. With one thread for
all masters, one that hangs would keep the others from being connected for seconds.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from redlock_django.wire.clock import clock
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.notice import Notice
from redlock_django.wire.servers.handshake import join
from redlock_django.wire.servers.trust import Joined, Unfit, Unmarked

logger = logging.getLogger("redlock_django")

SETTLING = 0.02
"""Seconds after which a master without a marker is asked again, then twice as long, and so on.

Meanwhile the other masters answer, whose markers decide whether this client may write one."""


@dataclass(eq=False)
class Dialing:
    """One daemon thread that connects to a master until it works; at most one for each master.

    The driver takes each result, and returns whether to go on. The thread does not keep its owner
    alive: it ends once that is gone.
    """

    _master: Master
    _links: Links
    _notice: Notice
    _closed: threading.Event
    _driver: Callable[[], Callable[[int, Joined | Unfit], bool] | None]  # a weak reference
    _settling: float = 0.0  # the pause after the last attempt, if the master has no marker
    _unexpected: str = ""  # the last error that no rule here expects

    def run(self, delay: float, lost: str) -> None:
        """Connect after `delay` seconds, and again until the driver has a connection.

        The notice callback is called with each result, in this thread, so that it delays no caller.
        `lost` is why a link was lost that may not come back at once, else "".
        """
        if lost:
            self._report(Unfit(lost))
        is_early = False
        while not self._closed.wait(delay):
            if delay and not is_early and self._closed.wait(PACE.turn()):
                return
            result = self._join()
            is_early = isinstance(result, Unmarked) and result.early
            again = self._deliver(result)
            if is_early:
                delay = self._settling
                continue
            self._report(result)
            if not again:
                return
            delay = self._master.backoff()

    def _join(self) -> Joined | Unfit:
        """Return a connection, or why there is none."""
        master, links, timeout = self._master, self._links, self._links.connect_timeout
        try:
            return join(master.address, links.deployment, links.membership, links.tolerate, timeout)
        except Unmarked as error:
            # The markers of the other masters decide whether this one gets one.
            links.membership.look_again()
            self._settling = 2 * self._settling or SETTLING
            error.early = self._settling < timeout
            return error.with_traceback(None)
        except Unfit as error:
            self._settling = 0.0
            return error.with_traceback(None)  # its frames would keep the connection alive
        except Exception as error:  # a bug or a misuse must not silently end the attempts
            if repr(error) != self._unexpected:  # its traceback is the same every time
                logger.exception("redlock master %s", master.address.name)
            self._unexpected = repr(error)
            return Unfit(f"could not be reached: {type(error).__name__}")

    def _deliver(self, result: Joined | Unfit) -> bool:
        deliver = self._driver()
        if deliver is None:
            discard(result)
            return False
        return deliver(self._master.index, result)

    def _report(self, result: Joined | Unfit) -> None:
        # The callback may take long, and must not keep the links alive.
        if self._driver() is None or self._closed.is_set():
            return
        name = self._master.address.name
        try:
            if isinstance(result, Unfit):
                self._notice(name, False, str(result))
            else:
                self._notice(name, True, result.trust.why(clock()))
        except BaseException:  # or the thread would end, and no other connects to this master
            logger.exception("redlock master %s: the notice callback failed", name)


def discard(result: Joined | Unfit) -> None:
    """Close a connection that is not needed any more."""
    if isinstance(result, Joined):
        result.socket.close()


class Pace:
    """The pace of repeated attempts to connect, for all links of this process together.

    To connect costs processor time. If all links of all loops did it at the same time, a busy
    machine would have none left to read replies, and would lose the next links. The first attempt
    after the start, or after a connection that ended without a fault, need not wait for its turn.
    """

    SPACING = 0.02  # seconds between two attempts, on average

    def __init__(self) -> None:
        self._next = 0.0

    def turn(self) -> float:
        """Take the next turn and return the seconds until then.

        Two threads at the same moment may take the same turn, which is harmless.
        """
        now = clock()
        at = max(now, self._next)
        self._next = at + random.uniform(0.5, 1.5) * self.SPACING
        return at - now


PACE = Pace()
