"""The plan: which masters make a quorum that can be asked without a closer look."""

from __future__ import annotations

from collections.abc import Sequence

from redlock_django.engine.membership import Membership
from redlock_django.engine.plain_tally import Switch
from redlock_django.engine.protocol.commands import Command
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, Vote, failed
from redlock_django.engine.quorum import quorum
from redlock_django.engine.steps import Round
from redlock_django.wire.clock import clock
from redlock_django.wire.judging.late_masters import BEHIND, LateWatch
from redlock_django.wire.judging.late_rule import SHORTEST
from redlock_django.wire.link.link import Link
from redlock_django.wire.link.master import Master, Plan
from redlock_django.wire.link.pending_replies import Exchange

INSPECTED = 2.0
"""Seconds after which a command is preceded by INFO: the server may have changed on a live link."""


class Planner:
    """The owner of the `plan`, which answers whether masters may be asked, and why not.

    While the plan is valid, a round is sent to its masters without a look at any of them.
    """

    def __init__(
        self,
        masters: Sequence[Master],
        plan: Plan,
        deployment: Deployment,
        membership: Membership,
        lateness: LateWatch,
    ) -> None:
        self.plan = plan
        self._masters = masters
        self._quorum = quorum(deployment.masters)
        self._membership = membership
        self._lateness = lateness

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = clock()
        return sum(1 for master in self._masters if not master.fault(now))

    def may_reach_quorum(self) -> bool:
        """Return whether connections under way may still make up for a missing quorum."""
        connecting = sum(1 for m in self._masters if m.connecting)
        if not connecting:
            return False
        usable = self.usable()
        return usable < self._quorum <= usable + connecting

    def may_gain_quorum(self, asked: Round) -> bool:
        """Return whether a round may win only if it waits for connections under way."""
        return self.may_reach_quorum() and any(c is not None and c.trusted for c in asked.commands)

    def conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self._membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    def asks_plainly(self, now: float) -> bool:
        """Return whether a quorum can be asked without a closer look at any master."""
        if not Switch.on or self._membership.conflict:
            return False
        return now < self.plan.until or self._may_plan(now)

    def _may_plan(self, now: float) -> bool:
        """Return whether a quorum can be asked without a closer look, and plan to ask it.

        All others must be late, behind or without a link, and nothing be left to do for them.
        """
        links: dict[int, Link] = {}
        left_out: dict[int, Vote] = {}
        behind = self._lateness.behind(now)
        for master in self._masters:
            if (link := master.link) and self._is_sound(master, now) and master not in behind:
                links[master.index] = link
            elif (master.late or master in behind or not link) and not master.unfinished:
                why = master.fault(now) or BEHIND
                left_out[master.index] = failed(why, sent=False, stale=why == BEHIND)
            else:
                return False
        if len(links) < self._quorum:
            return False
        plan, masters = self.plan, self._masters
        plan.asked, plan.links, plan.left_out = tuple(links), tuple(links.values()), left_out
        # Masters that are behind may answer at any time.
        plan.until = now + SHORTEST if behind else min(masters[i].sound_until for i in links)
        return True

    def _is_sound(self, master: Master, now: float) -> bool:
        """Return whether a master needs no closer look, and note until when this is known."""
        link = master.link
        if (
            link is None
            or master.fault(now)
            or master.failures
            or master.unfinished
            or master.unanswered
            or now - link.inspected > INSPECTED
        ):
            return False
        master.sound_until = link.inspected + INSPECTED
        return True

    def leave_out(self, exchange: Exchange, command: Command) -> bool:
        """Count the votes of the masters that the plan leaves out, if it covers the whole round.

        Otherwise return False, without having counted any.
        """
        left_out, commands = self.plan.left_out, exchange.asked.commands
        alike = commands.count(command)
        for index, vote in left_out.items():
            if (other := commands[index]) is None:
                alike += 1
            elif not other.trusted or (vote.stale and not exchange.asked.spares):
                return False  # a release, or a round that needs the masters that are behind
        if alike != len(commands):
            return False
        for index, vote in left_out.items():
            exchange.cast(index, NOT_ASKED if commands[index] is None else vote)
        return True
