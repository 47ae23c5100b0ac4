"""The steps of clocks that a client may and must notice, computed from the steps themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import quorum
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.link import Owed
from tests.engine.world import Clock, SimulatedMaster, Violation, World

if TYPE_CHECKING:
    from tests.engine.network import Line, Owner


@dataclass(slots=True, eq=False)
class Request:
    """A command, or a handshake (without `owed`), that a client has sent to a master.

    `off` is how far the client's clock was off when it asked, `answered` how far the master's was
    when it answered, None if the answer does not show its clock. `is_undecided` is set while the
    round of a reply that is being read is not decided yet.
    """

    off: float
    owed: Owed | None = None
    answered: float | None = None
    is_noted: bool = False
    is_undecided: bool = False


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

    def noted(
        self, steady: bool, theirs: float, asked: float, width: float, *, is_kept: bool = True
    ) -> None:
        """Check whether the client rightly takes a clock to be steady after one more reply.

        `theirs` is how far the master's clock was off when it replied, `asked` how far the
        client's was when it asked. `is_kept` is False if the client keeps the bounds that it has.
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
        if is_kept:
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


class StepCheck:
    """Check, by the true steps, what the links of one client take for a step."""

    def __init__(self, owner: Owner, steps: StepWatch, lines: Sequence[Line]) -> None:
        self.owner = owner
        self.lines = lines
        self._noticed: set[int] = set()  # indexes of masters that stepped
        self._note, self._decide = steps.note, steps.decide
        steps.note = self._noted  # type: ignore[method-assign]
        steps.decide = self._decided  # type: ignore[method-assign]

    def _noted(self, master: Any, low: float, high: float) -> bool:
        """Check whether this reply shows that a clock stepped against the other."""
        line: Line = master
        if line.truth is not None and line.offset is None:
            line.truth.forget()
        is_steady = self._note(line, low, high)
        if not is_steady:
            self._noticed.add(line.index)
        if line.truth is not None:
            request = line.connection.owed.requests[0] if line.connection else line.hello
            assert request is not None
            assert request.answered is not None
            request.is_noted = True
            line.truth.noted(is_steady, request.answered, request.off, abs(high - low))
        elif not is_steady:
            raise Violation(f"{line.master.name} is taken to have stepped, but no clock steps")
        return is_steady

    def _decided(self) -> None:
        """At the end of a watch, check whether it should blame our own clock."""
        if not self._noticed or any(
            line.checking and line.link and not line.late for line in self.lines
        ):
            self._decide()
            return
        stepped, self._noticed = self._noticed, set()
        self._decide()
        if len(stepped) >= quorum(len(self.lines)):
            self.owner.blamed()

    def begin(self, requests: Sequence[Request]) -> None:
        """Note which of the replies that a link owes belong to rounds that are not decided yet."""
        for one in requests:
            one.is_undecided = one.owed is not None and one.owed.undecided is not None

    def read(self, line: Line, request: Request) -> None:
        """Check a reply that the client has handled."""
        truth, owed = line.truth, request.owed
        if truth is None or owed is None or line.link is None:
            return
        if request.answered is not None and not request.is_noted:
            width = abs(self.owner.clock.read() - owed.sent)
            truth.noted(True, request.answered, request.off, width, is_kept=False)
        if request.is_undecided and owed.command is not None and owed.command.trusted:
            assert owed.exchange is not None
            vote = owed.exchange.tally.votes[line.index]
            if vote is not None and vote.ballot is Ballot.GRANTED:
                truth.counted()
