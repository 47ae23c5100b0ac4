"""Connecting: dialing threads, links that come, links that are lost.

A master without a link is dialed by a thread of its own (`master.dial`); a caller never connects.
"""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import replace

from redlock_django.engine.commands import Release
from redlock_django.engine.quorum import failed
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Owed
from redlock_django.wire.join import Joined, Trust, Unfit, Unmarked, check
from redlock_django.wire.link import Link, pack, pack_command, pack_parts
from redlock_django.wire.link_state import IDLE
from redlock_django.wire.master import Master, dial, discard
from redlock_django.wire.sender import Sender
from redlock_django.wire.server_info import run_of

logger = logging.getLogger("redlock_django")


class Dialer(Sender):
    """Connect to every master, and connect again when a link is lost."""

    def connect(self) -> None:
        """Begin to connect to every master that no thread connects to yet."""
        for master in self.masters:
            if master.link is None and master.reason == "not connected yet":
                self._dial(master, "connecting", 0.0)

    def redial(self) -> bool:
        """Start dialing threads that could not be started, and repeat releases that were refused.

        What an interrupt has left of losing a link is done first. Returns whether nothing is left
        to repeat. Every round calls this, and the driver does from time to time.
        """
        for master in self.masters:
            if master.losing is not None:
                self._finish_losing(master, *master.losing)
            if master.undialed is not None and not self.closed.is_set():
                self._dial(master, *master.undialed)
            if master.refused_releases and master.link is not None:
                for release in master.due_releases(clock()):
                    self._write(master, Owed(None, release, clock()), pack_command(release, 0))
        return not any(master.unfinished for master in self.masters)

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason
        master.connecting = delay == 0.0
        receiver = _DialReceiver(self, master)
        dialer = threading.Thread(
            target=dial,
            args=(master, self.closed, receiver.deliver, receiver.notice),
            kwargs={
                "deployment": self.deployment,
                "membership": self.membership,
                "delay": delay,
                "lost": reason if delay else "",
                "tolerate": self.tolerate,
                "timeout": self.connect_timeout,
            },
            name=f"redlock-dial-{master.address.name}",
            daemon=True,
        )
        first, master.undialed = master.undialed is None, (reason, delay)
        try:
            dialer.start()
        except RuntimeError as error:  # the process may have no more threads now
            master.connecting = False
            master.reason = f"no thread could be started to connect to it: {error}"
            if first:
                logger.error(
                    "redlock master %s: %s",
                    master.address.name,
                    master.reason,
                    extra={"master": master.address.name},
                )
            return
        # Not earlier: if an interrupt strikes above, another thread is started. If both connect,
        # the driver takes the first connection only.
        master.undialed = None

    def arrived(self, index: int, result: Joined | Unfit) -> bool:
        """Handle the end of an attempt to connect; return whether another attempt must follow."""
        master = self.masters[index]
        if isinstance(result, Unmarked) and result.early:
            master.reason = str(result)
            return True
        if isinstance(result, Unfit):
            if master.connecting or master.reason != str(result):
                logger.warning(
                    "redlock master %s is not counted: %s",
                    master.address.name,
                    result,
                    extra={"master": master.address.name},
                )
            master.connecting = False
            master.reason = str(result)
            master.failures += 1
            self._changed()
            return True
        for text in result.warnings:
            logger.warning("redlock master %s %s", master.address.name, text)
        if master.run_id != result.run_id:
            master.forget_clock()  # another server process, perhaps on another machine
        master.run_id = result.run_id
        result.socket.setblocking(False)
        master.link = Link(result.socket, pushes=result.pushes)
        master.link.inspected = result.inspected
        low, high = result.trust.offset
        master.link.took = high - low  # of the reply that has these bounds
        master.connecting = False
        master.reason = ""
        self._find_twins()
        self._watch(master)
        self._trusted(master, result.trust)
        for release in master.pending_releases.values():
            self._write(master, Owed(None, release, clock()), pack_command(release, 0))
            master.unanswered.pop(release.token, None)
        master.pending_releases.clear()
        if master.check_mode != "join":
            self._check(master, master.check_mode)
        if self.waiters.is_used:
            self._listen(master)
        self._changed()
        return False

    def _listen(self, master: Master) -> None:
        link = master.link
        if link is None:
            return
        if not link.pushes:
            self._log_polling(master, "does not support RESP3")
            return
        data = pack("SUBSCRIBE", self.waiters.channel)
        self._write(master, Owed(None, None, clock(), subscribes=True), data)

    def _find_twins(self) -> None:
        first: dict[str, Master] = {}
        for master in self.masters:
            known, master.twin = master.twin, ""
            if master.link is None:
                continue
            other = first.setdefault(master.run_id, master)
            if other is not master:
                # Neither master is counted: one server must never vote twice, and the error must be
                # visible to the author of the settings.
                master.twin, other.twin = other.address.name, master.address.name
                if known != master.twin:
                    logger.error(
                        "redlock masters %s and %s are the same server: neither is counted",
                        other.address.name,
                        master.address.name,
                    )

    def _trusted(self, master: Master, trust: Trust) -> None:
        left = trust.ready - clock()
        if master.trust is not None and master.trust.marker == trust.marker:
            # A master names the reason only in the reply that writes its marker.
            trust = replace(trust, doubt=master.trust.doubt)
        elif left > 0:
            logger.warning(
                "redlock master %s %s: trusted in %.1f s",
                master.address.name,
                trust.doubt,
                left,
                extra={"master": master.address.name},
            )
        master.trust = trust
        if master.link is not None:
            master.link.tail = pack_parts(trust.marker, trust.ready_at)
        self.steps.note(master, *trust.offset)

    def _inspected(self, master: Master, info: dict[str, str]) -> None:
        """Lose the link of a master that may not be counted any more, by its INFO."""
        try:
            check(info, self.tolerate)
        except Unfit as error:
            self.lose(master, str(error))
            return
        if run_of(info) != master.run_id:
            self.lose(master, "has evicted keys, or taken other data by replication")

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Close a link that failed, notify every caller that waits for it, and connect again.

        If the connection `ended`, a vote on a link that was idle before fails as stale.
        """
        if master.link is not None:
            master.losing = master.link, reason, late, ended
            self._finish_losing(master, *master.losing)

    def _finish_losing(
        self, master: Master, link: Link, reason: str, late: bool, ended: bool
    ) -> None:
        """Do what `lose` does; after an interrupt, `redial` does all of it again."""
        if master.link is link:
            self._unwatch(master)
            master.reason = reason
            master.checking = False
            master.late = ""
            self._fail_owed(master, link, ended=ended)
            self.waiters.lose(master.index)
            master.link = None
        self._find_twins()  # a server that had two names may have one left
        # A link that is closed on purpose still delivers its releases.
        link.close(cut=not self.closed.is_set())
        if master.link is None and not self.closed.is_set():
            # A connection that ended without a fault (an idle time-out, a restart) may come back at
            # once. A master that was late, or fails again, is left alone for a while.
            calm = not late and master.failures == 0
            logger.log(
                logging.INFO if calm else logging.WARNING,
                "redlock master %s: %s",
                master.address.name,
                reason,
                extra={"master": master.address.name},
            )
            self._dial(master, reason, 0.0 if calm else master.backoff())
        master.failures += 1
        self.steps.decide()
        self._changed()
        master.losing = None

    def _fail_owed(self, master: Master, link: Link, *, ended: bool) -> None:
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


class _DialReceiver:
    """The receiver of a connecting thread's results, for links that may be gone by then."""

    def __init__(self, links: Dialer, master: Master) -> None:
        self.links = weakref.ref(links)
        self.index, self.name = master.index, master.address.name

    def deliver(self, result: Joined | Unfit) -> bool:
        links = self.links()
        if links is None:
            discard(result)
            return False
        return links.deliver(self.index, result)

    def notice(self, result: Joined | Unfit) -> None:
        links = self.links()
        if links is None or links.closed.is_set():
            return
        notice = links.notice
        del links  # the callback may take long and must not keep the links alive
        try:
            if isinstance(result, Unfit):
                notice(self.name, False, str(result))
            else:
                left = result.trust.ready - clock()
                why = f"{result.trust.doubt}: trusted in {max(left, 1):.0f} s" if left > 0 else ""
                notice(self.name, True, why)
        except BaseException:  # or the thread would end, and no other connects to this master
            logger.exception("redlock master %s: the notice callback failed", self.name)
