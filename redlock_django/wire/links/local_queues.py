"""The waiters of a process or loop that sleep in the masters' queues: which one is next."""

from __future__ import annotations

from collections.abc import Sequence

from redlock_django.engine.protocol.slots import name_of
from redlock_django.engine.steps import Pause
from redlock_django.wire.links.waiter import Waiter


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
            queue = self._queues.get(name_of(resource))
            # A copy, made in one step: other threads come and go meanwhile.
            if queue and (places := queue.copy()):
                waiter = min(places, key=places.__getitem__)
                _, others = places[waiter]
                if others <= 0:
                    found.append(waiter)
        return found
