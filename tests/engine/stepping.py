"""The steps of clocks that a client may and must notice, computed from the steps themselves."""

from __future__ import annotations

from redlock_django.engine.protocol.deployment import Deployment
from tests.engine.world import Clock, SimulatedMaster, Violation, World


class Truth:
    """How far one master's clock really stepped against one client's.

    The client knows of a reply only that it was given between asking and reading. So it may be
    wrong by that `width` each time, and by the 1 % that clocks may run apart.
    """

    def __init__(self, world: World, ours: Clock, master: SimulatedMaster) -> None:
        self.world = world
        self.ours = ours
        self.master = master
        self.deployment: Deployment = master.deployment
        self.noticed: float | None = None  # when the client last noticed a step
        self.forget()

    def forget(self) -> None:
        """Forget what the client knows of the master's clock, as for a new client."""
        self._last: tuple[float, float] | None = None
        self._ever = (0.0, 0.0)
        self._width = self._widest = self._at = self._when = 0.0

    def noted(self, steady: bool, theirs: float, asked: float, width: float) -> None:
        """Check whether the client rightly takes a clock to be steady after one more reply.

        `theirs` is how far the master's clock was off when it replied, `asked` how far the
        client's was when it asked.
        """
        ours = (asked, self.ours.off)
        least, most = theirs - max(ours), theirs - min(ours)
        now, skew = self.ours.read(), self.deployment.max_clock_skew
        if self._last is None:
            self._ever, self._widest = (least, most), width
        else:
            # What the watch allows by our clock, plus how far the clocks may really run apart.
            slack = 0.01 * (abs(now - self._at) + self.world.now - self._when)
            apart = max(least - self._last[1], self._last[0] - most)
            if steady and apart > skew + width + self._width + slack:
                raise Violation(
                    f"{self.master.name} stepped by {apart:.3f} s, and the client does not notice"
                )
            self._ever = (min(self._ever[0], least), max(self._ever[1], most))
            self._widest = max(self._widest, width)
            # Clocks also run apart while a reply is on its way, and after one has gone back.
            far = 1.02 * (self._ever[1] - self._ever[0]) + 0.02 * self._widest
            if not steady and far < skew:
                raise Violation(f"{self.master.name} is taken to have stepped, but has not")
        if not steady:
            self._ever, self._widest = (least, most), width
            self.noticed = self.world.now
            self.world.seen["step noticed"] += 1
        self._last, self._width = (least, most), width
        self._at, self._when = now, self.world.now

    def counted(self) -> None:
        """Check that the client may count the master's vote again after a step."""
        if self.noticed is None:
            return
        # Clocks that went forward meanwhile shorten the wait by as much.
        hurried = max(self.master.clock.rose(self.noticed), self.ours.rose(self.noticed))
        waited = self.world.now - self.noticed
        if waited + hurried < 0.98 * self.deployment.restart_delay:
            raise Violation(
                f"{self.master.name} is counted {waited:.3f} s after its clock was seen to step"
            )
