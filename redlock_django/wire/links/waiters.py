"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import re
import secrets
import weakref
from collections.abc import Callable
from itertools import count

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import granted
from redlock_django.engine.steps import Offer, Pause
from redlock_django.wire.clock import clock
from redlock_django.wire.links.local_queues import LocalQueues
from redlock_django.wire.links.waiter import PARTIAL, RESTING, Crowd, Waiter

_GRANTED = re.compile(rb"(.+)=([0-9a-f]{40}) (\d+) (\d+)")
"""The message of a release that has set the lock: waiter, proof, TIME in µs, fence."""
Believes = Callable[[bytes, float, Offer], bool]


class Waiters:
    """All waiters that listen on one channel. A waiter without other references is dropped."""

    def __init__(
        self,
        deployment: Deployment,
        process: str = "",
        clock: Callable[[], float] = clock,
        resume: Callable[[Waiter], None] = Waiter.ask_now,
    ) -> None:
        self.channel = deployment.wake(process or secrets.token_hex(8))
        self.is_used = False  # from the first waiter on: then every link listens
        self.queues = LocalQueues()
        self._resume = resume
        self._masters = deployment.masters
        self._clock = clock
        self._numbers = count(1)
        self._listening: set[int] = set()  # the masters that accepted the subscription
        self._by_name: weakref.WeakValueDictionary[bytes, Waiter] = weakref.WeakValueDictionary()
        # A crowd lasts as long as its waiters.
        self.crowds: weakref.WeakValueDictionary[tuple[str, ...], Crowd] = (
            weakref.WeakValueDictionary()
        )

    def new(self, resources: tuple[str, ...] = ()) -> Waiter:
        """Return a new waiter, in the crowd of those for the same resources, if any are given."""
        name = f"{self.channel} {next(self._numbers)}"
        waiter = Waiter(name, self._masters, self._listening, self._clock)
        self._by_name[name.encode()] = waiter
        if resources:
            # If two threads make it at the same time, there are two crowds for a while.
            crowd = self.crowds.get(resources) or self.crowds.setdefault(resources, Crowd())
            crowd.join(waiter)
        return waiter

    def begin_pause(self, waiter: Waiter, pause: Pause) -> None:
        """Begin a pause of a waiter; call `end_pause` when it is over."""
        waiter.rest(pause)
        self.queues.join(waiter, pause)

    def end_pause(self, waiter: Waiter) -> None:
        """Note that the pause of a waiter is over: no round is sent for it any more."""
        self.queues.leave(waiter, waiter.pause)
        waiter.end_rest()
        waiter.forget_wakeup()

    def interrupt(self, waiter: Waiter) -> None:
        """Note that a waiter was interrupted, perhaps in a pause, and undoes what it began."""
        self.end_pause(waiter)
        if waiter.sent is not None:
            waiter.sent.abandon()

    def call(self, name: object, master: int, believes: Believes | None = None) -> bool:
        """Pass a master's call to the waiter of that name; return whether there is one.

        A space before the name asks the waiter to watch the turn of another one. The name may be
        unknown: any client can publish on the channel. If a release has set the lock by the
        waiter's offer, `believes` gets the proof of that, the master's clock (s) and the offer, and
        returns whether the grant may be counted. If not, or without `believes`, the message is a
        call like others.
        """
        if not isinstance(name, bytes):
            return False
        if message := _GRANTED.fullmatch(name):
            name, proof, time, fence = message.groups()
            waiter = self._by_name.get(name)
            offer = None if waiter is None else waiter.pause.offer
            if (
                waiter is not None
                and offer is not None
                and believes is not None
                and believes(proof, int(time) / 1_000_000, offer)
            ):
                if waiter.grant(master, granted(int(time), (int(fence),))):
                    self._resume(waiter)
                return True
            if waiter is not None and waiter.state is RESTING:
                waiter.hurry(PARTIAL)  # until it asks, the lock keeps others waiting
        waiter = self._by_name.get(name.removeprefix(b" "))
        if waiter is None:  # perhaps the call names a slot
            name, _, slot = name.rpartition(b"/")
            waiter = self._by_name.get(name)
            if waiter is None or not slot.isdigit():
                return False
            waiter.called_slot = int(slot)
        if name.startswith(b" "):
            waiter.watch()
        elif waiter.call(master):
            self._resume(waiter)
        return True

    def listen(self, master: int) -> None:
        """Note that a master (0-based index) calls on this channel from now on."""
        self._listening.add(master)
        for waiter in list(self._by_name.values()):
            waiter.join()

    def lose(self, master: int) -> None:
        """Note that the link to a master was lost, and perhaps a call with it."""
        if master in self._listening:
            self._listening.discard(master)
            for waiter in list(self._by_name.values()):
                waiter.doubt()
