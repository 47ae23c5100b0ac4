"""The waiters of a process or loop: one channel on which masters call them, and a name for each."""

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import count, islice

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.engine.refusal import CrowdRefusal
from redlock_django.engine.steps import Pause, Round
from redlock_django.wire.clock import clock
from redlock_django.wire.link.link import Exchange, wake_none

HOUR = 3600.0  # seconds of the longest sleep; other events end it
WATCH = 0.11  # seconds until a waiter that watches a turn tries again: a little more than a turn
# How many waiters of a process or loop ask the masters for the same resources: the waiter whose
# turn it is, the next one, and one on its way into the queues.
MOST_ASKING = 3


class Waiter:
    """One protocol that waits for a lock; its name is stored in the masters' queues.

    It is `decided`, and need not wait any longer, once a majority of masters has called it: fewer
    calls may come from what is left of a vote that another client has lost. Otherwise it asks again
    at the time `until`, which may become earlier while it waits. As long as it may not ask at all,
    it is `behind` others of its `crowd`.

    During a `pause`, the driver may send the next round, which is `sent` from then on. Then the
    waiter is decided once that round is.
    """

    __slots__ = (
        "__weakref__", "_callers", "_clock", "_doubted", "_listening", "_need", "_unheard",
        "_until", "behind", "crowd", "name", "pause", "sent", "wake",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        masters: int,
        listening: AbstractSet[int],
        clock: Callable[[], float] = clock,
    ) -> None:
        self.name = name
        self.wake: Callable[[], object] = wake_none
        self._until = math.inf
        self.pause: Pause | None = None
        self.sent: Exchange | None = None
        self.behind = False
        self.crowd: Crowd | None = None
        self._unheard: float | None = None  # for the pause; None during a round
        self._doubted = False
        self._callers: set[int] = set()
        self._listening = listening
        self._need = quorum(masters)
        self._clock = clock

    @property
    def until(self) -> float:
        """The time at which it asks again; an hour from now while a round sent for it is open."""
        return self._until if self.sent is None else self._clock() + HOUR

    @property
    def decided(self) -> bool:
        """True if enough masters have called, or answered the round that was sent for it."""
        sent = self.sent
        return len(self._callers) >= self._need if sent is None else sent.decided

    @property
    def crowd_refusal(self) -> CrowdRefusal | None:
        """The last answer to its crowd; None if it has no crowd."""
        return None if self.crowd is None else self.crowd.refusal

    def call(self, master: int) -> bool:
        """Note a call of a master (0-based index): return whether enough of them have called."""
        self._callers.add(master)
        return self.decided

    def ask(self) -> None:
        """Forget earlier calls: a new round begins, which answers them."""
        self._callers.clear()
        self._doubted, self._unheard, self._until = False, None, math.inf

    def rest(self, pause: Pause) -> float:
        """Begin a pause; return its seconds if nothing happens meanwhile."""
        self._unheard = min(pause.seconds, pause.unheard)
        is_heard = len(self._listening) >= self._need and not self._doubted
        seconds = pause.seconds if is_heard else self._unheard
        now = self._clock()
        if self._until < now + seconds:
            return max(0.0, self._until - now)  # the round may have lasted longer
        self._until = now + seconds
        return seconds

    def rested(self) -> None:
        """End a pause, and forget its wake-up, which must not end the next pause as well."""
        self._until = math.inf

    def watch(self) -> None:
        """Note that the turn of another waiter has begun: this waiter asks if it passes unused."""
        self.hurry(WATCH)

    def join(self) -> None:
        """Note that a link is new: its master may not have this waiter in its queue."""
        # A round under way is sent on the link after the subscription.
        if self._unheard is not None:
            self.hurry(self._unheard)

    def doubt(self) -> None:
        """Note that a link was lost, and perhaps a call with it."""
        self._doubted = True
        self.join()

    def hurry(self, seconds: float) -> None:
        """Ask again after that many seconds at the latest."""
        until = self._clock() + seconds
        if until < self._until:
            self._until = until
            self.wake()

    def ask_now(self) -> None:
        """Ask again at once."""
        self.hurry(0.0)

    def send(self, sent: Exchange) -> None:
        """Note that a round was sent for this waiter, which sleeps on until it is decided."""
        self.sent = sent  # first: after an interrupt, calls from before are only counted in vain
        self.ask()
        if sent.decided:
            self.wake()

    def answered(self) -> None:
        """Wake the caller: the round that was sent for this waiter is decided."""
        self.wake()

    def takes_verdict(self, asked: Round) -> bool:
        """Return whether this round was sent during the pause, which has ended with its verdict."""
        if self.sent is None or self.sent.asked is not asked:
            return False
        self.sent = None
        return True

    def leave(self) -> None:
        """Leave the crowd, so that its next waiter may ask: the call is over, however it ended."""
        if self.crowd is not None:
            self.crowd.leave(self)


class Crowd:
    """The waiters of a process or loop for the same resources, in the order of their tickets.

    Only the first MOST_ASKING ask the masters and join their queues. Once one of them is served or
    gives up, the next one may ask; its ticket is as old as its wait. So the first of all waiters is
    always in the queues, and the order is the same as if all asked. But a crowd that comes at one
    moment does not keep a busy host from answering the first of it.
    """

    __slots__ = ("__weakref__", "_waiters", "refusal")

    def __init__(self) -> None:
        self.refusal = CrowdRefusal()
        # Weak: an interrupt may end a call before its waiter leaves.
        self._waiters: dict[str, weakref.ref[Waiter]] = {}

    def join(self, waiter: Waiter) -> None:
        """Add a waiter as the last one."""
        waiter.crowd = self
        waiter.behind = True  # first: a waiter that leaves from now on may let it ask
        self._waiters[waiter.name] = weakref.ref(waiter)
        if len(self._waiters) <= MOST_ASKING or waiter in self._first():
            waiter.behind = False

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter, and let the next one ask."""
        self._waiters.pop(waiter.name, None)
        for other in self._first() if len(self._waiters) >= MOST_ASKING else ():
            if other.behind:
                other.behind = False
                other.hurry(0.0)

    def _first(self) -> list[Waiter]:
        """Return the waiters that may ask."""
        # A copy, made in one step: other threads come and go meanwhile.
        living = (waiter for one in list(self._waiters.values()) if (waiter := one()) is not None)
        return list(islice(living, MOST_ASKING))


class LocalQueues:
    """The waiters of a process or loop that sleep in the masters' queues, by resource.

    After a release in this process, the next waiter need not wait for its call: its attempt leaves
    with the release, on the same links. Masters grant to the first waiter in the queue alone, and
    call it if it is another one: no waiter of another process is overtaken, and a release that
    leaves in the same send need not call.
    """

    def __init__(self) -> None:
        # The ticket of each waiter, and how many waiters of other processes were in front of it.
        self._queues: dict[str, dict[Waiter, tuple[int, int]]] = {}

    def join(self, waiter: Waiter, pause: Pause) -> None:
        """Note that a waiter begins a pause; call `leave` when it is over."""
        if pause.resource:
            queue = self._queues.setdefault(pause.resource, {})
            ours = sum(ticket < pause.ticket for ticket, _ in list(queue.values()))
            queue[waiter] = pause.ticket, pause.ahead - ours

    def leave(self, waiter: Waiter, pause: Pause) -> None:
        """Note that the pause is over."""
        queue = self._queues.get(pause.resource)
        if queue is not None:
            queue.pop(waiter, None)
            if not queue:  # also after an interrupt of `join`
                self._queues.pop(pause.resource, None)

    def next_waiters(self, resources: Sequence[str]) -> list[Waiter]:
        """Return the next waiter for each of these resources, which a release is freeing.

        Returns none where the next one may be a waiter of another process.
        """
        found = []
        for resource in resources:
            queue = self._queues.get(resource)
            # A copy, made in one step: other threads come and go meanwhile.
            if queue and (places := queue.copy()):
                waiter = min(places, key=places.__getitem__)
                _, others = places[waiter]
                if others <= 0:
                    found.append(waiter)
        return found


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
        waiter.pause = pause
        waiter.rest(pause)
        self.queues.join(waiter, pause)

    def end_pause(self, waiter: Waiter) -> None:
        """Note that the pause of a waiter is over: no round is sent for it any more."""
        if waiter.pause is not None:
            self.queues.leave(waiter, waiter.pause)
        waiter.pause = None
        waiter.wake = wake_none
        waiter.rested()

    def interrupt(self, waiter: Waiter) -> None:
        """Note that a waiter was interrupted, perhaps in a pause, and undoes what it began."""
        self.end_pause(waiter)
        if waiter.sent is not None:
            waiter.sent.abandon()

    def call(self, name: object, master: int) -> bool:
        """Pass a master's call to the waiter of that name; return whether there is one.

        A space before the name asks the waiter to watch the turn of another one. The name may be
        unknown: any client can publish on the channel.
        """
        if not isinstance(name, bytes):
            return False
        waiter = self._by_name.get(name.removeprefix(b" "))
        if waiter is None:
            return False
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
