"""The dialer: it connects to masters, and handles links that come and links that are lost.

A master without a link is dialed by a thread of its own (`dialing`); a caller never connects.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import failed
from redlock_django.wire.clock import clock
from redlock_django.wire.judging.clock_steps import StepWatch
from redlock_django.wire.link.link import Kind, Link, Owed
from redlock_django.wire.link.master import Master
from redlock_django.wire.link.resp import pack, pack_parts
from redlock_django.wire.links.dialing import Dialing, Terms
from redlock_django.wire.links.outbox import Outbox
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.servers.handshake import Joined, Trust, Unfit, Unmarked, check
from redlock_django.wire.servers.info import run_of

logger = logging.getLogger("redlock_django")

IDLE = 1.0
"""The seconds without a round after which all links are read before the next one.

A link on which nothing came for so long is stale if it ends in the next round.
"""


class Driver(Protocol):
    """The driver of the links, as far as connecting needs it: threads or an event loop."""

    def watch(self, master: Master) -> None:
        """Watch a link until it is readable, or writable if it is `blocked`."""

    def unwatch(self, master: Master) -> None:
        """Stop watching a link, which is about to be closed."""

    def changed(self) -> None:
        """Wake the callers that wait for links: a master came or went."""

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        """Take the result of a connecting thread, in that thread; False ends the thread.

        A connection that is not taken is closed here, because the thread cannot know.
        """


class Dialer:
    """Connect to every master, and connect again when a link is lost."""

    def __init__(
        self,
        masters: Sequence[Master],
        deployment: Deployment,
        membership: Membership,
        terms: Terms,
        outbox: Outbox,
        steps: StepWatch,
        waiters: Waiters,
        driver: Driver,
    ) -> None:
        self.closed = threading.Event()
        self._terms = terms
        self.driver = driver
        self._masters = masters
        self._deployment = deployment
        self._membership = membership
        self._outbox = outbox
        self._steps = steps
        self._waiters = waiters

    # Connecting.

    def connect(self) -> None:
        """Begin to connect to every master that no thread connects to yet."""
        for master in self._masters:
            if master.link is None and master.reason == "not connected yet":
                self._dial(master, "connecting", 0.0)

    def redial(self) -> bool:
        """Start dialing threads that could not be started, and repeat releases that were refused.

        Losing a link or marking a master that an interrupt has left unfinished is finished first.
        Returns whether nothing is left to repeat. Every round calls this, and the driver does from
        time to time.
        """
        self._steps.decide()
        for master in self._masters:
            self.finish_losing(master)
            if master.undialed is not None and not self.closed.is_set():
                self._dial(master, *master.undialed)
            if master.refused_releases and master.link is not None:
                for release in master.due_releases(clock()):
                    self._outbox.write_release(master, release)
        return not any(master.unfinished for master in self._masters)

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason
        master.connecting = delay == 0.0
        dialing = Dialing(
            master, self._deployment, self._membership, self._terms, self.closed,
            self.driver.deliver,
        )  # fmt: skip
        thread = threading.Thread(
            target=dialing.run,
            args=(delay, reason if delay else ""),
            name=f"redlock-dial-{master.address.name}",
            daemon=True,
        )
        first, master.undialed = master.undialed is None, (reason, delay)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads now
            master.connecting = False
            master.reason = f"no thread could be started to connect to it: {error}"
            if first:
                _log(logging.ERROR, master, f": {master.reason}")
            return
        # Not earlier: if an interrupt strikes above, another thread is started. If both connect,
        # the driver takes the first connection only.
        master.undialed = None

    # Links that come.

    def arrived(self, index: int, result: Joined | Unfit) -> bool:
        """Handle the end of an attempt to connect; return whether another attempt must follow."""
        master = self._masters[index]
        if isinstance(result, Unfit):
            self._note_failure(master, result)
            return True
        self._take(master, result)
        return False

    def _note_failure(self, master: Master, failure: Unfit) -> None:
        """Note why a master has no link; its thread goes on to connect."""
        if isinstance(failure, Unmarked) and failure.early:
            master.reason = str(failure)
            return
        if master.connecting or master.reason != str(failure):
            _log(logging.WARNING, master, f" is not counted: {failure}")
        master.connecting = False
        master.reason = str(failure)
        master.failures += 1
        self.driver.changed()

    def _take(self, master: Master, result: Joined) -> None:
        """Use a new connection, and first send what was kept for its master."""
        for text in result.warnings:
            logger.warning("redlock master %s %s", master.address.name, text)
        if master.run_id != result.run_id:
            master.forget_clock()  # another server process, perhaps on another machine
        master.run_id = result.run_id
        result.socket.setblocking(False)
        master.link = Link(result.socket, pushes=result.pushes)
        master.inspected(result.inspected)
        low, high = result.trust.offset
        master.link.took = high - low  # of the reply that has these bounds
        master.connecting = False
        master.reason = ""
        self._find_twins()
        self.driver.watch(master)
        self.trusted(master, result.trust)
        for release in master.pending_releases.values():
            self._outbox.write_release(master, release)
            master.unanswered.pop(release.token, None)
        master.pending_releases.clear()
        if self._steps.must_mark(master):
            self._outbox.check(master, "distrust")
        if self._waiters.is_used:
            self.listen(master)
        self.driver.changed()

    def listen(self, master: Master) -> None:
        """Subscribe to a master's calls for waiters, on its link if it has one."""
        link = master.link
        if link is None:
            return
        if not link.pushes:
            self.log_polling(master, "does not support RESP3")
            return
        data = pack("SUBSCRIBE", self._waiters.channel)
        self._outbox.write(master, Owed(Kind.SUBSCRIBE, clock()), data)

    def log_polling(self, master: Master, why: str) -> None:
        """Log once that a master cannot call waiters, so that they poll it."""
        if not master.polling_logged:
            text = f" {why}: it cannot call waiters, which poll it instead"
            _log(logging.WARNING, master, text)
        master.polling_logged = True

    def _find_twins(self) -> None:
        first: dict[str, Master] = {}
        for master in self._masters:
            known, master.twin = master.twin, ""
            if master.link is None:
                continue
            other = first.setdefault(master.run_id, master)
            if other is not master:
                # Neither master is counted: one server must never vote twice, and the error must be
                # visible to the author of the settings.
                master.twin, other.twin = other.address.name, master.address.name
                master.usable = other.usable = False
                if known != master.twin:
                    logger.error(
                        "redlock masters %s and %s are the same server: neither is counted",
                        other.address.name,
                        master.address.name,
                    )

    def trusted(self, master: Master, trust: Trust) -> None:
        """Note what a master's marker says of its trust."""
        if master.trust is not None and master.trust.marker == trust.marker:
            # A master names the reason only in the reply that writes its marker.
            trust = replace(trust, doubt=master.trust.doubt)
        elif why := trust.why(clock()):
            _log(logging.WARNING, master, f" {why}")
        master.trust, master.usable = trust, False
        if master.link is not None:
            master.link.tail = pack_parts(trust.marker, trust.ready_at)
        self._steps.note(master, *trust.offset)

    def inspected(self, master: Master, info: dict[str, str]) -> None:
        """Lose the link of a master that may not be counted any more, by its INFO."""
        try:
            check(info, self._terms.tolerate)
        except Unfit as error:
            self.lose(master, str(error))
            return
        if run_of(info) != master.run_id:
            self.lose(master, "has evicted keys, or taken other data by replication")

    # Links that are lost.

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Close a link that failed, notify every caller that waits for it, and connect again.

        If the connection `ended`, a vote on a link that was idle before fails as stale.
        """
        if master.link is not None:
            master.usable = False
            master.losing = master.link, reason, late, ended
            self.finish_losing(master)

    def finish_losing(self, master: Master) -> None:
        """Do what `lose` does, if it began; after an interrupt, `redial` does all of it again."""
        if master.losing is None:
            return
        link, reason, late, ended = master.losing
        if master.link is link:
            self.driver.unwatch(master)
            master.reason = reason
            master.checking = False
            master.late = ""
            _fail_owed(master, link, ended=ended)
            self._waiters.lose(master.index)
            master.link = None
        self._find_twins()  # a server that had two names may have one left
        # A link that is closed on purpose still delivers its releases.
        link.close(cut=not self.closed.is_set())
        if master.link is None and not self.closed.is_set():
            # A connection that ended without a fault (an idle time-out, a restart) may come back at
            # once. A master that was late, or fails again, is left alone for a while.
            calm = not late and master.failures == 0
            _log(logging.INFO if calm else logging.WARNING, master, f": {reason}")
            self._dial(master, reason, 0.0 if calm else master.backoff())
        master.failures += 1
        self._steps.decide()
        self.driver.changed()
        master.losing = None


def _fail_owed(master: Master, link: Link, *, ended: bool) -> None:
    """Fail the votes that a lost link owes, and keep the releases for the next one."""
    for owed in link.owed:
        command = owed.command
        if isinstance(command, Release):
            master.keep_release(command)
        elif (release := owed.late_undo) is not None:
            master.keep_release(release)
        elif command is not None and command.sets:
            master.remember_unanswered(command.token)
        if owed.exchange is not None:
            stale = ended and owed.sent - link.heard > IDLE
            owed.exchange.cast(master.index, failed(master.reason, stale=stale))


def _log(level: int, master: Master, text: str) -> None:
    name = master.address.name
    logger.log(level, "redlock master %s%s", name, text, extra={"master": name})
