"""Masters that are late: the rule for late replies, and the watch that judges by it.

1. The age of an owed reply is the time since its command was written, but only as far as this
   process was running: a stall of our own makes no reply late.
2. A reply whose age reaches the *patience* costs its vote: the round does not wait for it any more.
   It is read and dropped when it comes, in its order. The link stays, because to connect again
   costs a busy machine the processor time that the replies need.
3. The patience is MASTER_TIMEOUT, or USUAL times what the masters' last replies took (the median
   master) if that is longer, and LONGEST times MASTER_TIMEOUT at most. If all masters are slow, so
   is the host or the network, and a lock that takes a second is better than a refusal. If some
   masters fail while the others are quick, the patience stays what it is.
4. A master whose oldest owed reply reaches the patience and MASTER_TIMEOUT is *late*. Every round
   in flight counts its vote as failed, and no later round asks it: it is sent what needs no vote
   (releases, checks) and nothing else. It votes again once it has answered all that it owes. The
   oldest reply counts, so a master that answers something all the time, but always late, is late
   too. Between the two ages a master is still asked: one that shares our busy machine mostly
   answers by then, and to refuse at once would fail many rounds for one late reply.
5. The link of a late master is given up once nothing has come for `give_up` seconds of running
   time, or if it owes more than MOST_OWED replies. A master that works off a long queue keeps it.
   While most masters are late, a link is given up after MOST_LATE times that: then mostly the host
   is starved, and to connect again costs it more than to wait.
6. A *patient* round, whose caller waits for the lock anyway, does not lose the votes of 2 and 4 as
   long as no quorum has answered; and if no quorum can be asked otherwise, it asks late masters.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median

from redlock_django.engine.protocol.votes import failed
from redlock_django.wire.links.link import Exchange, Link, Owed
from redlock_django.wire.links.master import Master

logger = logging.getLogger("redlock_django")

GIVE_UP = 3.0
"""The seconds after which a link is given up, or six times MASTER_TIMEOUT if that is longer.

It is the default of `LateWatch`. That is more than the age at which a master is late."""

MOST_LATE = 2  # how many times longer a link is kept while most masters are late
USUAL = 8  # how many times longer than usual a reply may take
LONGEST = 4  # the longest patience, in times of MASTER_TIMEOUT

SHORT = 0.005  # seconds without a poll, or beyond its end, in which the process did not stall
SHORTEST = 0.001  # seconds of the shortest poll
MOST_STALLS = 50  # the last stalls that are remembered
MOST_OWED = 20_000  # more than the releases that are kept for one master and sent at once


def late_reason(seconds: float, stalled: float, load: tuple[float, int]) -> str:
    """Return why a vote fails for a reply that took longer than `seconds`.

    `stalled` is for how long this process was stalled meanwhile, `load` the load average of this
    host and the number of its processors. Both distinguish a busy host, whose own masters are late
    as well, from a slow master.
    """
    average, processors = load
    if stalled >= seconds / 2:
        why = f"this host is busy: the process was stalled for {stalled:.2f} s meanwhile"
    elif average > processors:
        why = f"this host is busy: its load average is {average:.1f} on {processors} processors"
    else:
        why = "it or the network is slow: this process was not stalled"
    return f"did not answer within {seconds:g} s ({why})"


def load_average() -> tuple[float, int]:
    """Return this host's load average of the last minute, and the number of its processors."""
    processors = os.cpu_count() or 1
    try:
        return os.getloadavg()[0], processors
    except OSError:
        return 0.0, processors


class RunningTime:
    """How long a driver was running, as far as its polls show it. `now` is its clock."""

    def __init__(self, now: float) -> None:
        self.passed = 0.0
        self._counted = now
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_STALLS)  # begin and end

    def polled(self, asked: float, took: float, now: float) -> bool:
        """Add a poll that was to last `asked` seconds, took `took`, and ended now.

        Returns whether a reply may be late now: not if something ended the poll early.

        A poll that took much longer means that this process stalled, and the masters may have
        stalled as well: then only a part of the time counts. But a short poll counts as a whole: on
        a busy machine nearly every poll is exceeded, and the rest of a wait would never end. A
        short time without a poll, before one that ended early, counts too: this process was
        computing. A longer time may be a stall.
        """
        since = now - self._counted
        self._counted = now
        if took < asked:  # as nearly always
            self.passed += since if since < took + SHORT else took
            return took >= asked / 2
        # Rounding may leave a rest that is too small to add: then no reply would get late.
        if asked < SHORTEST:
            asked = SHORTEST
        counts = took if took < asked else asked
        if took > 2 * asked + SHORT:
            counts = max(asked / 4, min(asked, SHORT))
        self.passed += counts if counts < since else since
        if took > asked + SHORT:
            self._stalls.append((now - took + asked, now))
        return True

    def stalled_since(self, moment: float) -> float:
        """Return for how long polls took longer than asked, since a moment of the clock."""
        stalls = list(self._stalls)  # another thread may add one
        return sum(end - max(begin, moment) for begin, end in stalls if end > moment)


class LateWatch:
    """Fail the votes of replies that are too old, and note which masters are late.

    All ages are in seconds. A `give_up` of None is the default: see `GIVE_UP`. Until `due` no reply
    need be judged; it is 0.0 if that is not known.
    """

    def __init__(
        self,
        masters: Sequence[Master],
        running: RunningTime,
        master_timeout: float,
        give_up: float | None = None,
    ) -> None:
        self.masters = masters
        self.running = running
        self.master_timeout = master_timeout
        self.give_up = max(GIVE_UP, 6 * master_timeout) if give_up is None else give_up
        self.due = 0.0
        # Votes that are late, and still waited for: the round, the master, why the vote is late.
        self._patient: list[tuple[Exchange, int, str]] = []

    def poll_timeout(self, now: float) -> float:
        """Return the seconds to poll until the next reply must be judged, or the watch asked."""
        # What is sent from now on is judged after MASTER_TIMEOUT at the earliest.
        left = self.master_timeout
        for master in self.masters:
            link = master.link
            if link is not None and link.owed:
                left = min(left, self._left(master, link, now))
        for exchange, _, _ in self._patient:
            asked = exchange.asked
            left = min(left, asked.patient - now if asked.waits_on(now) else 0.0)
        left = max(left, 0.0)
        self.due = now + left
        return left

    def overdue(self, now: float) -> list[Master]:
        """Return the masters to read once more before `judge`, because a reply is due."""
        return [
            master
            for master in self.masters
            if master.link is not None
            and master.link.owed
            and self._left(master, master.link, now) <= 0
        ]

    def judge(self, now: float) -> list[tuple[Master, str]]:
        """Judge late replies; return the masters whose links must be given up, and why."""
        given_up = []
        for master in self.overdue(now):
            assert master.link is not None
            if reason := self._judge(master, master.link, now):
                given_up.append((master, reason))
        waiting, self._patient = self._patient, []
        for vote in waiting:
            self.fail_late(*vote, now)
        return given_up

    def fail_late(self, exchange: Exchange, index: int, reason: str, now: float) -> None:
        """Fail the vote of a master that is late, as soon as the round does not wait for it."""
        if exchange.asked.waits_on(now) and not exchange.decided:
            self._patient.append((exchange, index, reason))
        else:
            exchange.cast(index, failed(reason))

    def in_time(self, master: Master) -> None:
        """Count a master again: it was late, and has answered all that it owed."""
        master.late = ""
        logger.info(
            "redlock master %s answers again",
            master.address.name,
            extra={"master": master.address.name},
        )

    def _age(self, owed: Owed, now: float) -> float:
        """Return the age of an owed reply."""
        # A poll that was under way when the command was written counts in part only.
        return min(self.running.passed - owed.ran, now - owed.sent)

    def _silent(self, link: Link, now: float) -> float:
        """Return for how long a reply has been owed on a link without any answer."""
        return min(self._age(link.owed[0], now), self.running.passed - link.ran)

    def _left(self, master: Master, link: Link, now: float) -> float:
        """Return the seconds until the replies owed on a link must be judged; 0 or less for now."""
        timeout = self.master_timeout
        if master.late:
            return self._kept_for(link, now)
        if not link.expired:  # as nearly always; then the oldest reply is the next to expire
            age = self._age(link.owed[0], now)
            return (timeout if age < timeout else self.patience()) - age
        patience = self.patience()
        left = patience + timeout - self._age(link.owed[0], now)
        # Nearly every round is decided by other masters: its reply need not be judged at once.
        for owed in islice(link.owed, link.expired, None):
            if owed.undecided is not None:
                return min(left, patience - self._age(owed, now))
        return left

    def patience(self) -> float:
        """Return the age at which a reply costs its vote now."""
        took = [master.link.took for master in self.masters if master.link is not None]
        return min(max(self.master_timeout, USUAL * median(took)), LONGEST * self.master_timeout)

    def _longest_silence(self) -> float:
        """Return for how long the link of a late master may be silent now."""
        late = sum(bool(master.late) for master in self.masters)
        return self.give_up * (MOST_LATE if late > len(self.masters) // 2 else 1)

    def _kept_for(self, link: Link, now: float) -> float:
        """Return the seconds until the link of a late master must be given up; 0 or less for now.

        It is kept for longer if something comes meanwhile.
        """
        if len(link.owed) > MOST_OWED:
            return 0.0
        return self._longest_silence() - self._silent(link, now)

    def _judge(self, master: Master, link: Link, now: float) -> str:
        """Judge the replies owed on a link; return why it must be given up, or ""."""
        if master.late:
            is_over = self._kept_for(link, now) <= 0
            return self._reason(self._longest_silence(), link) if is_over else ""
        patience, reason = self.patience(), ""
        is_late = self._age(link.owed[0], now) >= patience + self.master_timeout
        for owed in islice(link.owed, link.expired, None):
            if not is_late and self._age(owed, now) < patience:
                break
            if (exchange := owed.undecided) is not None:
                reason = reason or self._reason(patience, link)
                self.fail_late(exchange, master.index, reason, now)
            link.expired += 1
        if is_late:
            self._mark_late(master, reason or self._reason(patience, link))
        return ""

    def _reason(self, seconds: float, link: Link) -> str:
        """Return why the oldest reply that is owed on a link is not waited for."""
        stalled = self.running.stalled_since(link.owed[0].sent)
        return late_reason(seconds, stalled, load_average())

    def _mark_late(self, master: Master, reason: str) -> None:
        """Ask a master for no more votes until it has answered what it owes; its link stays."""
        master.usable = False
        master.late = reason
        logger.info(
            "redlock master %s %s: not counted until it answers",
            master.address.name,
            reason,
            extra={"master": master.address.name},
        )
