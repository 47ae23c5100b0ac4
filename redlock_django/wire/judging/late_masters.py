"""Judging which masters are late, by the rule of `late_rule`, on the links of one driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import median

from redlock_django.engine.protocol.votes import failed
from redlock_django.engine.quorum import quorum
from redlock_django.wire.clock import clock
from redlock_django.wire.judging.host_load import load_average
from redlock_django.wire.judging.late_rule import Lateness, RunningTime, late_reason
from redlock_django.wire.link.link import Link
from redlock_django.wire.link.master import Master
from redlock_django.wire.link.pending_replies import Exchange, Owed

logger = logging.getLogger("redlock_django")

BEHIND = "has not answered its last commands yet"
"""Why a master that is behind is not asked."""


class LateWatch:
    """Fail the votes of replies that are too old, and note which masters are late.

    `read(master)` reads what a master has sent, without blocking. `lose(master, reason)` gives up
    its link. `changed()` is called when a master becomes late, and when it is not late any more.
    """

    def __init__(
        self,
        masters: Sequence[Master],
        rule: Lateness,
        read: Callable[[Master], None],
        lose: Callable[[Master, str], None],
        changed: Callable[[], None],
    ) -> None:
        self.masters = masters
        self.rule = rule
        self.read = read
        self.lose = lose
        self.changed = changed
        self.running = RunningTime(clock())
        # Votes that are late, and still waited for: the round, the master, why the vote is late.
        self._patient: list[tuple[Exchange, int, str]] = []
        self.due = 0.0  # until then no reply need be judged; 0.0 if not known

    def poll_timeout(self, now: float) -> float:
        """Return the seconds to poll until the next reply must be judged, or the watch asked."""
        # What is sent from now on is judged after MASTER_TIMEOUT at the earliest.
        left = self.rule.master_timeout
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

    def waited(self, asked: float, took: float, now: float) -> None:
        """Count a poll that was to last `asked` seconds, took `took`, and ended `now`.

        Then judge which replies are late.
        """
        self.running.polled(asked, took, now)
        if took < asked / 2:
            return  # something ended the poll early, so no reply can be due yet
        for master in self.masters:
            link = master.link
            if link is None or not link.owed or self._left(master, link, now) > 0:
                continue
            self._read_all(master, link)
            if master.link is link and link.owed:
                self._judge(master, link, now)
        waiting, self._patient = self._patient, []
        for vote in waiting:
            self.fail_late(*vote, now)

    def _read_all(self, master: Master, link: Link) -> None:
        """Read all that a master has sent, or a part of it if its oldest reply has expired."""
        while True:
            owed = len(link.owed)
            self.read(master)
            if len(link.owed) == owed or not link.owed or link.expired:
                return

    def fail_late(self, exchange: Exchange, index: int, reason: str, now: float) -> None:
        """Fail the vote of a master that is late, as soon as the round does not wait for it."""
        if exchange.asked.waits_on(now) and not exchange.decided:
            self._patient.append((exchange, index, reason))
        else:
            exchange.cast(index, failed(reason))

    def look(self, now: float) -> None:
        """Look for masters that are behind: once in MOST_BEHIND rounds."""
        links = {m.index: m.link for m in self.masters if m.link and not m.fault(now)}
        owed = {index: len(link.owed) for index, link in links.items()}
        for index in self.rule.behind(owed, len(self.masters)):
            link = links[index]
            silent = now - max(link.heard, link.owed[0].sent)
            if self.rule.is_quiet(silent, link.took):
                link.behind = link.heard
                self.masters[index].look_closer()

    def behind(self, now: float) -> set[Master]:
        """Return the masters that are behind, which a first attempt does not ask.

        There are none if no quorum can be asked without them; and a late master is late only.
        """
        for master in filter(_is_behind, self.masters):
            self.read(master)  # it may have answered by now
        behind = set(filter(_is_behind, self.masters))
        if behind:
            others = sum(1 for m in self.masters if m not in behind and not m.fault(now))
            if others < quorum(len(self.masters)):
                behind.clear()
        return behind

    def in_time(self, master: Master) -> None:
        """Count a master again: it was late, and has answered all that it owed."""
        master.late = ""
        logger.info(
            "redlock master %s answers again",
            master.address.name,
            extra={"master": master.address.name},
        )
        self.changed()

    def _age(self, owed: Owed, now: float) -> float:
        """Return the age of an owed reply."""
        # A poll that was under way when the command was written counts in part only.
        return min(self.running.passed - owed.ran, now - owed.sent)

    def _silent(self, link: Link, now: float) -> float:
        """Return for how long a reply has been owed on a link without any answer."""
        return min(self._age(link.owed[0], now), self.running.passed - link.ran)

    def _left(self, master: Master, link: Link, now: float) -> float:
        """Return the seconds until the replies owed on a link must be judged; 0 or less for now."""
        rule = self.rule
        if master.late:
            longest = self._longest_silence()
            if rule.is_over(silent := self._silent(link, now), len(link.owed), longest):
                return 0.0
            return min(longest - silent, rule.master_timeout)
        if not link.expired:  # as nearly always; then the oldest reply is the next to expire
            age = self._age(link.owed[0], now)
            return (rule.master_timeout if age < rule.master_timeout else self.patience()) - age
        patience = self.patience()
        left = patience + rule.master_timeout - self._age(link.owed[0], now)
        # Nearly every round is decided by other masters: its reply need not be judged at once.
        for owed in islice(link.owed, link.expired, None):
            if owed.undecided is not None:
                return min(left, patience - self._age(owed, now))
        return left

    def patience(self) -> float:
        """Return the age at which a reply costs its vote now."""
        took = [master.link.took for master in self.masters if master.link is not None]
        return self.rule.patience(median(took))

    def _longest_silence(self) -> float:
        """Return for how long a link may be silent now."""
        late = sum(bool(master.late) for master in self.masters)
        return self.rule.longest_silence(late, len(self.masters))

    def _judge(self, master: Master, link: Link, now: float) -> None:
        """Apply the rule to the replies that are owed on a link."""
        rule = self.rule
        if master.late:
            longest = self._longest_silence()
            if rule.is_over(self._silent(link, now), len(link.owed), longest):
                self.lose(master, self._reason(longest, link))
            return
        patience, reason = self.patience(), ""
        late = rule.is_late(self._age(link.owed[0], now), patience)
        for owed in islice(link.owed, link.expired, None):
            if not (late or rule.has_expired(self._age(owed, now), patience)):
                break
            if (exchange := owed.undecided) is not None:
                reason = reason or self._reason(patience, link)
                self.fail_late(exchange, master.index, reason, now)
            link.expired += 1
        if late:
            self._mark_late(master, reason or self._reason(patience, link))

    def _reason(self, seconds: float, link: Link) -> str:
        """Return why the oldest reply that is owed on a link is not waited for."""
        stalled = self.running.stalled_since(link.owed[0].sent)
        return late_reason(seconds, stalled, load_average())

    def _mark_late(self, master: Master, reason: str) -> None:
        """Ask a master for no more votes until it has answered what it owes; its link stays."""
        master.late = reason
        logger.info(
            "redlock master %s %s: not counted until it answers",
            master.address.name,
            reason,
            extra={"master": master.address.name},
        )
        self.changed()


def _is_behind(master: Master) -> bool:
    link = master.link
    return link is not None and link.behind == link.heard and not master.late
