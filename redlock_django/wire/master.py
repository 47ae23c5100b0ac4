"""The state of one master, with or without a link: its trust, and the releases it must receive."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from redlock_django.engine.commands import Release
from redlock_django.engine.deployment import Deployment
from redlock_django.engine.membership import Membership
from redlock_django.engine.quorum import Vote
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock
from redlock_django.wire.join import Joined, Trust, Unfit, Unmarked, join
from redlock_django.wire.link import Link

logger = logging.getLogger("redlock_django")

Notice = Callable[[str, bool, str], object]
"""A callback about a master, by name: did it come (True) or fail, and the reason.

The reason is why it failed, or why the votes of a master that came are not counted yet ("" if they
are). Called in a connecting thread.
"""

SETTLING = 0.02
"""Seconds after which a master without a marker is asked again, then twice as long, and so on.

Meanwhile the other masters answer, whose markers decide whether this client may write one."""

REPEAT = 0.5  # seconds between two attempts to send releases that a master refuses
MAX_REMEMBERED = 10_000  # releases and unanswered tokens kept for a master that is away, at most


DOUBTFUL = frozenset((
    "distrusted_until", "failures", "late", "link", "losing", "reason", "suspect", "trust", "twin",
    "undialed",
))  # fmt: skip
"""What a master's votes depend on: after each change it is looked at again, see `sound_until`."""


class Plan:
    """The masters that can be asked, without a closer look, up to `until`, and their links.

    That is a quorum at least. The votes of the others are `left_out`: they are late or behind, or
    have no link. `until` is 0.0 from the moment at which anything changes for one of all masters.
    """

    __slots__ = ("asked", "left_out", "links", "until")

    def __init__(self) -> None:
        self.asked: tuple[int, ...] = ()
        self.links: tuple[Link, ...] = ()
        self.left_out: dict[int, Vote] = {}
        self.until = 0.0


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


class Master:
    """The state of one master, with or without a link."""

    def __init__(self, index: int, address: Address, plan: Plan) -> None:
        self.index = index
        self.address = address
        self.plan = plan
        # The moment up to which this master can be asked, and its grants can be counted, without a
        # closer look; see `Links.sound`.
        self.sound_until = 0.0
        self.link: Link | None = None
        self.run_id = ""
        self.trust: Trust | None = None
        self.reason = "not connected yet"
        self.connecting = False  # a first attempt to connect is under way
        # The reason and delay with which a thread must be started that connects to it.
        self.undialed: tuple[str, float] | None = None
        self.losing: tuple[Link, str, bool, bool] | None = None  # see `Dialer.lose`
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

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in DOUBTFUL:
            self.look_closer()

    def forget_clock(self) -> None:
        """Forget what is known of this master's clock relative to ours."""
        # The bounds of its clock minus ours, in seconds, and when they were measured.
        self.offset: tuple[float, float, float] | None = None
        self.steady = (math.inf, -math.inf, -math.inf)  # see `StepWatch`

    def look_closer(self) -> None:
        """Make the next round look at this master again before it is asked."""
        object.__setattr__(self, "sound_until", 0.0)
        self.plan.until = 0.0

    def fault(self, now: float, *, late: bool = True) -> str:
        """Return why this master's vote must not be counted now; "" if it may.

        Without `late`, that it is late does not matter.
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
        if now < self.trust.ready:
            left = max(self.trust.ready - now, 1)
            text = f"{self.trust.doubt}: trusted in {left:.0f} s"
            if self.trust.doubt == "fresh or flushed" or self.trust.doubt.startswith("waits"):
                text += " ('manage.py redlock_init' trusts fresh masters at once)"
            return text
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
        self.look_closer()
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
        """True if something is left to repeat for this master; see `Links.redial`."""
        return bool(self.undialed or self.losing or self.refused_releases)

    def remember_unanswered(self, token: str) -> None:
        """Remember that an acquire with this token may still arrive on a link that is gone."""
        self.look_closer()
        self.unanswered[token] = None
        if len(self.unanswered) > MAX_REMEMBERED:
            self.unanswered.popitem(last=False)

    def backoff(self) -> float:
        """Return the seconds until the next attempt: 0.1 to 1, with jitter."""
        longest = min(1.0, 0.1 * 2.0 ** min(self.failures, 8))
        return random.uniform(longest / 2, longest)


def dial(
    master: Master,
    closed: threading.Event,
    deliver: Callable[[Joined | Unfit], bool],
    notice: Callable[[Joined | Unfit], None],
    deployment: Deployment,
    membership: Membership,
    delay: float,
    *,
    lost: str,
    tolerate: frozenset[str],
    timeout: float,
) -> None:
    """Connect to a master until it works: a daemon thread, at most one for each master.

    `deliver` takes each result and returns whether to go on; then `notice` is called with it, in
    this thread, so that it delays no caller. `lost` is why a link was lost that may not come back
    at once, else "". `delay` and `timeout` are in seconds.
    """
    if lost:
        notice(Unfit(lost))
    unmarked = 0  # how often in succession
    unexpected = ""  # the last error that no rule here expects
    result: Joined | Unfit | None = None
    while not closed.wait(delay):
        if delay and not _is_early(result) and closed.wait(PACE.turn()):
            return
        try:
            result = join(master.address, deployment, membership, tolerate, timeout)
        except Unmarked as error:
            result = error.with_traceback(None)
            unmarked += 1
            # The markers of the other masters decide whether this one gets one.
            membership.look_again()
            delay = SETTLING * 2.0 ** (unmarked - 1)
            result.early = delay < timeout
        except Unfit as error:
            unmarked = 0
            result = error.with_traceback(None)  # its frames would keep the connection in memory
        except Exception as error:  # a bug or a misuse must not silently end the attempts
            if repr(error) != unexpected:  # its traceback is the same every time
                logger.exception("redlock master %s", master.address.name)
            unexpected = repr(error)
            result = Unfit(f"could not be reached: {type(error).__name__}")
        again = deliver(result)
        if _is_early(result):
            continue
        notice(result)
        if not again:
            return
        delay = master.backoff()


def _is_early(result: Joined | Unfit | None) -> bool:
    return isinstance(result, Unmarked) and result.early


def ignore(master: str, up: bool, reason: str) -> None:
    """Ignore a notice."""


def discard(result: Joined | Unfit) -> None:
    """Close a connection that is not needed any more."""
    if isinstance(result, Joined):
        result.socket.close()
