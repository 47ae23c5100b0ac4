"""Links that come and go, and what is known of their masters: markers, INFO, twins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from redlock_django.engine.quorum import quorum
from redlock_django.engine.steps import Round
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.link import Kind, Link, Owed
from redlock_django.wire.links.master import Master, find_twins
from redlock_django.wire.links.resp import pack, pack_parts
from redlock_django.wire.links.sender import Sender
from redlock_django.wire.links.waiters import Waiter, Waiters
from redlock_django.wire.servers.info import run_of
from redlock_django.wire.servers.trust import Joined, Trust, Unfit, Unmarked, check

logger = logging.getLogger("redlock_django")


@dataclass(eq=False)
class LinkChanges:
    """Note links that come and go.

    `late` has the masters that are late, `connecting` those to which a first attempt to connect is
    under way. `changed` is true once a master came, went, became late or answered again: the driver
    wakes the callers that wait for links.
    """

    _masters: Sequence[Master]
    _tolerate: frozenset[str]
    _sender: Sender
    _steps: StepWatch
    _waiters: Waiters
    _clock: Callable[[], float]
    changed: bool = False
    late: list[Master] = field(default_factory=list)
    connecting: set[Master] = field(default_factory=set)

    def connect(self) -> None:
        """Ask the driver to connect to every master that no thread connects to yet."""
        for master in self._masters:
            if master.link is None and master.reason == "not connected yet":
                master.undialed = "connecting", 0.0
                self._sender.dirty.add(master)

    def retry(self) -> bool:
        """Repeat what could not be done for masters; return whether nothing is left to repeat.

        These are a loss that an interrupt has left unfinished, a thread that could not be started,
        a decision about steps of clocks, and releases that a master refused. A round does this if a
        master is in doubt, and the driver does it from time to time.
        """
        self._steps.decide()
        for master in self._masters:
            self.finish_losing(master)
            if master.undialed is not None:
                self._sender.dirty.add(master)
            if master.refused_releases and master.link is not None:
                for release in master.due_releases(self._clock()):
                    self._sender.write_release(master, release)
        return not any(master.unfinished for master in self._masters)

    def failed(self, master: Master, failure: Unfit) -> None:
        """Note why a master has no link; its thread goes on to connect."""
        if isinstance(failure, Unmarked) and failure.early:
            master.reason = str(failure)
            return
        if master in self.connecting or master.reason != str(failure):
            _log(logging.WARNING, master, f" is not counted: {failure}")
        self.connecting.discard(master)
        master.reason = str(failure)
        master.failures += 1
        self.note(master)

    def joined(self, master: Master, result: Joined, connection: object = None) -> Link:
        """Use a new connection, and first send what was kept for its master."""
        for text in result.warnings:
            logger.warning("redlock master %s %s", master.address.name, text)
        if master.run_id != result.run_id:
            master.forget_clock()  # another server process, perhaps on another machine
        master.run_id = result.run_id
        low, high = result.trust.offset
        now = self._clock()
        link = Link(now, took=high - low, pushes=result.pushes, connection=connection)
        master.link = link
        master.inspected(result.inspected)
        self.connecting.discard(master)
        master.reason = ""
        find_twins(self._masters)
        self.trust(master, result.trust)
        for release in master.pending_releases.values():
            self._sender.write_release(master, release)
            master.unanswered.pop(release.token, None)
        master.pending_releases.clear()
        if self._steps.must_mark(master):
            self._sender.check(master, "distrust")
        if self._waiters.is_used:
            self._listen(master)
        self.note(master)
        return link

    def trust(self, master: Master, trust: Trust) -> None:
        """Note what a master's marker says of its trust."""
        if master.trust is not None and master.trust.marker == trust.marker:
            # A master names the reason only in the reply that writes its marker.
            trust = replace(trust, doubt=master.trust.doubt)
        elif why := trust.why(self._clock()):
            _log(logging.WARNING, master, f" {why}")
        master.trust, master.usable = trust, False
        if master.link is not None:
            master.link.tail = pack_parts(trust.marker, trust.ready_at)
            master.link.early_tail = pack_parts(trust.marker, 0)
        self._steps.note(master, *trust.offset)

    def inspected(self, master: Master, info: dict[str, str]) -> None:
        """Lose the link of a master that may not be counted any more, by its INFO."""
        try:
            check(info, self._tolerate)
        except Unfit as error:
            self.lose(master, str(error))
            return
        if run_of(info) != master.run_id:
            self.lose(master, "has evicted keys, or taken other data by replication")

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Drop a link that failed: every caller that waits for it gets a failed vote.

        If the connection `ended`, a vote on a link that was idle before fails as stale. The driver
        closes the connection, and connects again.
        """
        if master.link is not None:
            master.usable = False
            master.losing = master.link, reason, late, ended
            self._sender.dirty.add(master)
            self.finish_losing(master)

    def finish_losing(self, master: Master) -> None:
        """Do what `lose` does, if it began; after an interrupt, `retry` does all of it again."""
        if master.losing is None:
            return
        link, reason, late, ended = master.losing
        if master.link is link:
            master.reason = reason
            master.checking = False
            master.late = ""
            master.fail_owed(link, ended=ended)
            self._waiters.lose(master.index)
            master.lost, master.link = link, None
        find_twins(self._masters)  # a server that had two names may have one left
        # A connection that ended without a fault (an idle time-out, a restart) may come back at
        # once. A master that was late, or fails again, is left alone for a while.
        calm = not late and master.failures == 0
        _log(logging.INFO if calm else logging.WARNING, master, f": {reason}")
        master.undialed = reason, 0.0 if calm else master.backoff()
        master.failures += 1
        self._steps.decide()
        self.note(master)
        master.losing = None

    def not_dialed(self, master: Master, error: RuntimeError) -> None:
        """Note that no thread could be started to connect to a master; see `retry`."""
        is_known = master.undialed_logged
        self.connecting.discard(master)
        master.undialed_logged = True
        master.reason = f"no thread could be started to connect to it: {error}"
        if not is_known:
            _log(logging.ERROR, master, f": {master.reason}")

    def note(self, master: Master) -> None:
        """Note that a master came, went, became late or answers again."""
        self.late = [master for master in self._masters if master.late]
        self.changed = True
        self._sender.dirty.add(master)

    # Waiters.

    def waiter(self) -> Waiter:
        """Return a new waiter; from the first on, every link listens to its master's calls."""
        if not self._waiters.is_used:
            for master in self._masters:
                self._listen(master)
            self._waiters.is_used = True
        return self._waiters.new()

    def _listen(self, master: Master) -> None:
        """Subscribe to a master's calls for waiters, on its link if it has one."""
        link = master.link
        if link is None:
            return
        if not link.pushes:
            self.log_polling(master, "does not support RESP3")
            return
        data = pack("SUBSCRIBE", self._waiters.channel)
        self._sender.write(master, Owed(Kind.SUBSCRIBE, self._clock()), data)

    def log_polling(self, master: Master, why: str) -> None:
        """Log once that a master cannot call waiters, so that they poll it."""
        if not master.polling_logged:
            text = f" {why}: it cannot call waiters, which poll it instead"
            _log(logging.WARNING, master, text)
        master.polling_logged = True


JOINING = 0.02
"""Seconds, at least, for which the first rounds wait for the links that a quorum does not need.

A link that is under way comes a few ms after the quorum. Otherwise the first lock of a process
would be set on a bare majority, and be lost with any of these masters."""


@dataclass(eq=False)
class LinkWait:
    """How long a round waits for the masters in `connecting`, whose connections are under way."""

    _masters: Sequence[Master]
    connecting: Collection[Master]
    _connect_timeout: float
    _clock: Callable[[], float]
    _joining_until: float | None = None  # None: there has been no quorum yet

    def __post_init__(self) -> None:
        self.quorum = quorum(len(self._masters))

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = self._clock()
        return sum(1 for master in self._masters if not master.fault(now))

    def is_needed(self, asked: Round) -> bool:
        """Return whether a round waits for connections under way; see `seconds`."""
        trusted = any(c is not None and c.trusted for c in asked.commands)
        return trusted and self.seconds(self._clock()) > 0

    def seconds(self, began: float) -> float:
        """Return for how many seconds a round that began then waits.

        It waits as long as a quorum depends on connections under way. Once in the life of these
        links, rounds wait for the others, too, for as long again as the quorum took, and JOINING at
        least: a master that hangs costs no more than that.
        """
        connecting = len(self.connecting)
        usable = self.usable() if connecting else 0
        if not connecting or usable + connecting < self.quorum:
            return 0.0
        now = self._clock()
        if usable < self.quorum:
            return began + self._connect_timeout - now
        if self._joining_until is None:
            self._joining_until = now + max(now - began, JOINING)
        return self._joining_until - now


def _log(level: int, master: Master, text: str) -> None:
    name = master.address.name
    logger.log(level, "redlock master %s%s", name, text, extra={"master": name})
