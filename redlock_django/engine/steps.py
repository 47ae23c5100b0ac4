"""The steps of a protocol: what the rounds of acquire, extend and release ask of their driver.

A protocol is a generator. It yields a `Round` (send these commands, count the answers in this
tally) or a `Pause`, and is sent the clock when that is done. A driver does three things: it carries
a round until its tally is decided, it sleeps, and it throws an interrupt (a cancellation, Ctrl-C)
*into* the generator, which undoes what it began and raises the interrupt again. `GeneratorExit`
alone means that the driver is gone: then nothing can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from redlock_django.engine.protocol.commands import Command
from redlock_django.engine.quorum import Tally


@dataclass(slots=True, eq=False)
class Round:
    """Send `commands[i]` to master i (None: nothing), and count the answers in `tally`.

    A round that is not `awaited` is sent without waiting for its answers. A round that is `patient`
    waits for late answers up to that moment, as long as no quorum has answered.
    """

    commands: tuple[Command | None, ...]
    tally: Tally
    patient: float = 0.0
    awaited: bool = True

    def waits_on(self, now: float) -> bool:
        """Return whether an answer that is late is still waited for."""
        return now < self.patient and not self.tally.answered


class Pause(NamedTuple):
    """Sleep that many seconds, or until the waiter of this protocol is called.

    The pause ends when a majority of masters has called the waiter since its last round began. If a
    call may be missed (a link was lost, is new, or cannot bring calls), the pause lasts at most
    `unheard` seconds.
    """

    seconds: float
    unheard: float = math.inf


Step = Round | Pause
Result = TypeVar("Result")
Protocol = Generator[Step, float, Result]
