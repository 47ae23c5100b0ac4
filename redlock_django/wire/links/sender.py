"""Single commands: the bytes that are queued on the link of one master."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.wire.links.late_masters import RunningTime
from redlock_django.wire.links.link import Kind, Owed
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.resp import Templates, pack


@dataclass(eq=False)
class Sender:
    """Queue commands on the links of masters.

    `dirty` has the masters for which the driver has something to do.
    """

    _masters: Sequence[Master]
    _deployment: Deployment
    _membership: Membership
    _running: RunningTime
    _clock: Callable[[], float]
    dirty: set[Master] = field(default_factory=set)
    templates: Templates = field(default_factory=Templates)

    def write(self, master: Master, owed: Owed, data: bytes) -> None:
        """Queue a command for a master that has a link."""
        link = master.link
        assert link is not None
        if (command := owed.command) is not None and command.trusted:
            data += link.early_tail if command.early else link.tail
        owed.ran = self._running.passed
        link.write(owed, data)
        self.dirty.add(master)

    def write_release(self, master: Master, release: Release) -> None:
        """Queue a release that belongs to no round."""
        data = self.templates.pack(release, 0)
        self.write(master, Owed(Kind.COMMAND, self._clock(), None, release), data)

    def undo_late(self, master: Master, owed: Owed) -> None:
        """Release what a master has granted, or may grant, to a client that was refused already."""
        if (release := owed.late_undo) is not None:
            self.write_release(master, release)

    def check(self, master: Master, mode: str) -> None:
        """Ask again, on the live link, whether the master is trusted."""
        if mode == "join" and master.check_mode != "join":
            return  # it is being marked untrusted: on this link, or first on the next
        master.check_mode = mode
        if master.link is None or (master.checking and mode == "join"):
            return
        data = pack(*self.join(master, mode).call())
        self.write(master, Owed(Kind.CHECK, self._clock(), mode=mode), data)
        master.checking = True  # last: after an interrupt it may be asked twice, but not never

    def join(self, master: Master, mode: str) -> Join:
        """Return the query whether the master is trusted."""
        fingerprint = self._membership.fingerprint
        return Join(
            deployment=self._deployment, run_id=master.run_id, mode=mode, fingerprint=fingerprint
        )

    def check_all(self) -> None:
        """Read the marker of every master that has a link again."""
        for master in self._masters:
            self.check(master, "join")
