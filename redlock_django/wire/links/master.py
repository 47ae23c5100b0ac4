"""The state of one master, with or without a link: its trust, and the releases it must receive."""

from __future__ import annotations

import logging
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.votes import failed
from redlock_django.wire.links.link import Link
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.trust import Trust

logger = logging.getLogger("redlock_django")

INSPECTED = 2.0
"""Seconds after which a command is preceded by INFO: the server may have changed on a live link."""

IDLE = 1.0
"""The seconds without a round after which all links are read before the next one.

A link on which nothing came for so long is stale if it ends in the next round.
"""

REPEAT = 0.5  # seconds between two attempts to send releases that a master refuses
MAX_REMEMBERED = 10_000  # releases and unanswered tokens kept for a master that is away, at most


class Master:
    """The state of one master, with or without a link.

    While it is `usable`, it may be asked anything, and its votes count. Whatever may change that
    makes it not usable; then each round looks at it, until one finds no `fault` any more.
    """

    def __init__(self, index: int, address: Address) -> None:
        self.index = index
        self.address = address
        self.usable = False
        self.inspect_at = 0.0  # the moment from which a command is preceded by INFO
        self.link: Link | None = None
        self.lost: Link | None = None  # the last one, while its connection is to be closed
        self.run_id = ""
        self.trust: Trust | None = None
        self.reason = "not connected yet"
        # The reason and delay with which a thread must be started that connects to it.
        self.undialed: tuple[str, float] | None = None
        self.undialed_logged = False
        self.losing: tuple[Link, str, bool, bool] | None = None  # see `Links.lose`
        self.failures = 0
        self.late = ""  # why its votes are not waited for: it owes a late reply
        self.suspect = ""  # a clock step that is being examined
        self.twin = ""  # the name of another master that is the same server
        self.distrusted_until = 0.0
        self.check_mode = "join"
        self.checking = False
        self.looked = 0.0  # when its marker was last read because it was not counted
        self.polling_logged = False  # its waiters poll, which is logged once
        self.forget_clock()
        self.pending_releases: OrderedDict[str, Release] = OrderedDict()
        self.unanswered: OrderedDict[str, None] = OrderedDict()
        # Releases that the master refused by an error, each until its lock has expired anyway.
        self.refused_releases: OrderedDict[str, tuple[Release, float]] = OrderedDict()
        self._repeat_at = 0.0

    def inspected(self, now: float) -> None:
        """Note that the server was asked for INFO."""
        self.inspect_at = now + INSPECTED

    def forget_clock(self) -> None:
        """Forget what is known of this master's clock relative to ours."""
        # The bounds of its clock minus ours, in seconds, and when they were measured.
        self.offset: tuple[float, float, float] | None = None
        self.steady = (math.inf, -math.inf, -math.inf)  # see `StepWatch`

    def fault(self, now: float, *, late: bool = True, early: bool = False) -> str:
        """Return why this master's vote must not be counted now; "" if it may.

        Without `late`, a late master is not a reason; with `early`, one that is not trusted yet.
        """
        if self.link is None:
            return self.reason
        if self.late and late:
            return self.late
        if self.twin:
            return f"is the same server as {self.twin}"
        if doubt := self.doubt(now):
            return doubt
        if self.trust is None:
            return "has no marker yet"
        if now < self.trust.ready and not early:
            return self.trust.why(now)
        return ""

    def waits(self, now: float) -> bool:
        """Return whether the master is connected, and counted only at a later time."""
        return self.link is not None and self.trust is not None and now < self.trust.ready

    def doubt(self, now: float) -> str:
        """Return why this master's clock, or ours, is not reliable now; "" if both are."""
        if self.suspect:
            return self.suspect
        if now < self.distrusted_until:
            return f"our own clock stepped: trusted in {self.distrusted_until - now:.0f} s"
        return ""

    def keep_release(self, release: Release) -> None:
        """Keep a release: it is sent, with a tombstone, as soon as the master is back."""
        self.pending_releases[release.token] = replace(release, bury=True)
        if len(self.pending_releases) > MAX_REMEMBERED:
            self.pending_releases.popitem(last=False)

    def refuse_release(self, release: Release, until: float) -> None:
        """Keep a release that the master refused, for repetition on the same link until then."""
        self.usable = False  # so that a round repeats it
        self.refused_releases.setdefault(release.token, (release, until))
        if len(self.refused_releases) > MAX_REMEMBERED:
            self.refused_releases.popitem(last=False)

    def due_releases(self, now: float) -> list[Release]:
        """Return the refused releases that are due to be repeated; forget those that are over."""
        if now < self._repeat_at:
            return []
        self._repeat_at = now + REPEAT
        for release, until in list(self.refused_releases.values()):
            if until < now:
                del self.refused_releases[release.token]
        return [release for release, _ in self.refused_releases.values()]

    @property
    def unfinished(self) -> bool:
        """True if something is left to repeat for this master; see `Links.retry`."""
        return bool(self.undialed or self.losing or self.refused_releases)

    def remember_unanswered(self, token: str) -> None:
        """Remember that an acquire with this token may still arrive on a link that is gone."""
        self.usable = False  # a release with this token must leave a tombstone
        self.unanswered[token] = None
        if len(self.unanswered) > MAX_REMEMBERED:
            self.unanswered.popitem(last=False)

    def backoff(self) -> float:
        """Return the seconds until the next attempt: 0.1 to 1, with jitter."""
        longest = min(1.0, 0.1 * 2.0 ** min(self.failures, 8))
        return random.uniform(longest / 2, longest)

    def fail_owed(self, link: Link, *, ended: bool) -> None:
        """Fail the votes that a lost link owes, and keep the releases for the next one."""
        for owed in link.owed:
            command = owed.command
            if isinstance(command, Release):
                self.keep_release(command)
            elif (release := owed.late_undo) is not None:
                self.keep_release(release)
            elif command is not None and command.sets:
                self.remember_unanswered(command.token)
            if owed.exchange is not None:
                stale = ended and owed.sent - link.heard > IDLE
                owed.exchange.cast(self.index, failed(self.reason, stale=stale))


def find_twins(masters: Sequence[Master]) -> None:
    """Find the masters that are one server.

    None of them is counted: one server must never vote twice, and the error must be visible to the
    author of the settings.
    """
    first: dict[str, Master] = {}
    for master in masters:
        known, master.twin = master.twin, ""
        if master.link is None:
            continue
        other = first.setdefault(master.run_id, master)
        if other is not master:
            master.twin, other.twin = other.address.name, master.address.name
            master.usable = other.usable = False
            if known != master.twin:
                logger.error(
                    "redlock masters %s and %s are the same server: neither is counted",
                    other.address.name,
                    master.address.name,
                )
