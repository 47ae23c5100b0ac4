"""Detection of clock steps: a master's step is marked on the master; our own voids our leases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.wire.links.master import Master

logger = logging.getLogger("redlock_django")


KNOWN_FOR = 0.1
"""Seconds for which bounds are not widened by what the clocks may drift apart: 1 ms at most."""


@dataclass(eq=False)
class StepWatch:
    """Bound each master's clock relative to ours by every reply, and find which clock has stepped.

    `check(master, mode)` asks a master on its live link whether it is trusted ("join"), or marks it
    as not trusted ("distrust"). `clock` is ours. Leases on these masters that began up to the
    moment `voided` are lost; `latest` is the latest moment that our clock has shown to `note`.
    """

    masters: Sequence[Master]
    deployment: Deployment
    check: Callable[[Master, str], None]
    clock: Callable[[], float]
    voided: float = -inf
    latest: float = -inf
    _stepped: set[int] = field(default_factory=set)

    def note(self, master: Master, low: float, high: float) -> bool:
        """Narrow the bounds of a master's clock minus ours, in seconds; False if it has stepped."""
        now = self.clock()
        self.latest = max(self.latest, now)
        if high < low:  # our clock has gone back since the master was asked
            self.latest = max(self.latest, now + low - high + 1e-6)  # as exact as floats are
            high = low
        if master.offset is not None:
            then_low, then_high, at = master.offset
            slack = 0.01 * abs(now - at)
            apart = max(low - (then_high + slack), (then_low - slack) - high)
            if apart > self.deployment.max_clock_skew:
                self._suspect(master, apart)
                # Last: after an interrupt, the next reply shows the step again.
                self._keep(master, low, high, now)
                return False
            if apart <= 0:
                low, high = max(low, then_low - slack), min(high, then_high + slack)
        self._keep(master, low, high, now)
        return True

    def _keep(self, master: Master, low: float, high: float, now: float) -> None:
        """Keep the bounds, and those of the replies that would add little to them.

        A reply within these need not be noted: at most 1 % of `max_clock_skew` is lost by that.
        """
        master.offset = (low, high, now)
        little = 0.01 * self.deployment.max_clock_skew
        master.steady = (high - little, low + little, now + KNOWN_FOR)

    def _suspect(self, master: Master, apart: float) -> None:
        """A step is proved: check all other masters to find whose clock stepped."""
        self._stepped.add(master.index)
        master.usable = False
        master.suspect = f"its clock stepped by {apart:.1f} s"
        for other in self.masters:
            if other.link is not None:
                self.check(other, "join")
        self.decide()

    def checked(self, master: Master) -> None:
        """Note that a master has answered its check: the mark, if it was to be marked."""
        if master.check_mode == "join" and master.index not in self._stepped:
            master.suspect = ""  # from here on the ready-at of its marker decides
        self.decide()

    def must_mark(self, master: Master) -> bool:
        """Return whether a master must be marked on a new link; after an interrupt, maybe again."""
        is_decided = master.index not in self._stepped
        return master.check_mode == "distrust" or (is_decided and bool(master.suspect))

    def decide(self) -> None:
        """Decide whose clock stepped, once every master asked has answered, or is late or gone.

        Does nothing if that is decided. After an interrupt, the next call does all of it again.
        """
        if not self._stepped or any(m.checking and m.link and not m.late for m in self.masters):
            return
        stepped = [self.masters[index] for index in sorted(self._stepped)]
        if len(stepped) >= quorum(self.deployment.masters):
            self._blame_ourselves(stepped)
            return
        for master in stepped:
            self.check(master, "distrust")
        self._stepped.clear()  # not earlier: see above
        for master in stepped:
            logger.error(
                "redlock master %s: %s",
                master.address.name,
                master.suspect,
                extra={"master": master.address.name},
            )

    def _blame_ourselves(self, stepped: Sequence[Master]) -> None:
        """Void our leases: so many steps at once mean that our own clock stepped."""
        now = self.clock()
        # A clock that went back shows an earlier time than when those leases began. The replies to
        # the last ones of them may not have been noted, as they were within steady bounds.
        self.voided = max(now, self.latest + KNOWN_FOR)
        until = self.voided + self.deployment.restart_delay
        for master in stepped:
            master.usable = False
            master.distrusted_until = until
            master.suspect = ""
        for master in self.masters:
            if master.link is None:
                master.offset = None  # it was measured before our step
        self._stepped.clear()
        logger.error(
            "the clock of this process stepped relative to a majority of the redlock masters: "
            "its locks are lost, and it acquires none for %.1f s",
            until - now,
        )
