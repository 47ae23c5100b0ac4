"""The search for a slot of a name that several clients may hold at once.

The queue of a slot is that of any lock: its first node holds it. A client that finds a slot without
nodes creates its own there, unless another client has done so since it looked. A client that
finds none joins the queue of turns (`Tree.turns`), as does one for which no free slot is left by
the clients in this queue. The first one there watches the slots, and each other one only the node
before its own: so a release wakes one client. Each other one also looks now and then, and takes a
slot that those in front leave free: they may have been killed, or have a smaller limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from redlock_django.backends.protocol_backend import Acquisition, StoreProtocol, StoreStep
from redlock_django.backends.zookeeper.fences import Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.own_nodes import (
    OwnNodes,
    ZooKeeperRefusal,
    is_unchanged,
    look_at,
    nodes_in,
    nodes_of,
)
from redlock_django.backends.zookeeper.paths import Node, in_order, seconds_left
from redlock_django.engine.protocol.slots import slot_resource

TURN = 2.0  # seconds for which clients in front may leave a slot free


class SlotQueue(NamedTuple):
    """A slot as a look showed it: its holder's node, None if it is free.

    `version` grows with each holder. It is None if the queue does not exist.
    """

    resource: str
    queue: str
    first: Node | None
    version: int | None


class TakenSlot(NamedTuple):
    """A slot that was taken; `started` is the clock before that."""

    resource: str
    fence: int
    started: float
    waited: float


class SlotSearch:
    """The search of one attempt. A client that does not wait writes only if a slot is free."""

    def __init__(
        self,
        requests: Requests,
        fences: Fences,
        nodes: OwnNodes,
        wanted: Acquisition,
    ) -> None:
        self._requests = requests
        self._session = requests.session
        self._fences = fences
        self._nodes = nodes
        self._clock = self._session.clock
        self._wanted = wanted
        self._patient_until = self._session.patient_until(wanted)
        tree = self._session.tree
        self._base = tree.fences
        (self._name,) = wanted.resources
        self._turns = tree.turns(self._name)
        resources = [slot_resource(self._name, slot) for slot in range(wanted.limit)]
        self._queues = [(resource, tree.queue(resource)) for resource in resources]
        self._has_waited = False
        # When each free slot was first seen, by its queue and version.
        self._seen: dict[tuple[str, int | None], float] = {}

    def take(self) -> StoreProtocol[TakenSlot | ZooKeeperRefusal]:
        """Take a free slot, or wait for one in the queue of turns."""
        join = False
        while True:
            before, slots = yield from self._look(join=join)
            free = [slot for slot in slots if slot.first is None]
            has_joined, now = self._turns in self._nodes.paths, self._clock()
            join = False
            left = self._left_free(free)
            if ours := free[len(before) :] or left:
                taken = yield from self._take(random.choice(ours))
                if taken is not None:
                    self._nodes.leave(self._turns)
                    return taken
                join = not has_joined
            elif not free and now >= self._wanted.deadline:
                refusal = yield from self._refusal(slots, len(before))
                if refusal is not None:
                    return refusal
            elif not has_joined:
                join = True
            elif not before:
                yield from self._await_free()
            elif now < self._patient_until:
                until = self._patient_until if free else self._wanted.deadline
                turn = TURN * (1 + len(before) / 10)  # many look hardly more often than a few
                yield from self._await_place(before[-1], min(until - now, turn))
            else:
                return ZooKeeperRefusal(self._name, 0.0, "a slot is reserved for a waiter")

    def _left_free(self, free: Sequence[SlotQueue]) -> list[SlotQueue]:
        """Return the free slots that clients in front have not taken in their turn."""
        now, seen = self._clock(), self._seen
        self._seen = {(slot.queue, slot.version): now for slot in free}
        self._seen.update((key, seen[key]) for key in self._seen.keys() & seen.keys())
        return [slot for slot in free if now >= self._seen[slot.queue, slot.version] + TURN]

    def _look(
        self, *, join: bool = False, watch: Callable[[Any], object] | None = None
    ) -> StoreProtocol[tuple[list[Node], list[SlotQueue]]]:
        """Return the nodes that are before the own one in the queue of turns, and the slots."""
        look = partial(self._requests_of_look, watch)
        if join:
            stat, answers = yield from self._nodes.join(self._turns, look)
            self._session.note_servers_time(stat.ctime)
        else:
            answers = yield from self._requests.ask(look)
        turns, *found = answers
        waiting = nodes_of(turns)
        before = list(takewhile(lambda node: node.token != self._nodes.token, waiting))
        if len(before) == len(waiting) and self._turns in self._nodes.paths:
            raise Interrupted  # it was deleted by force
        slots = [_slot_queue(*queue, one) for queue, one in zip(self._queues, found, strict=True)]
        return before, slots

    def _requests_of_look(
        self, watch: Callable[[Any], object] | None, client: KazooClient
    ) -> list[Any]:
        lists = partial(client.get_children_async, watch=watch, include_data=True)
        return [
            client.get_children_async(self._turns),
            *(lists(queue) for _, queue in self._queues),
        ]

    def _take(self, slot: SlotQueue) -> StoreProtocol[TakenSlot | None]:
        """Take a slot that was free; return None if it is not any more."""
        queue = slot.queue
        started = self._clock()
        created = yield from self._nodes.join_unchanged(
            queue, slot.version, partial(look_at, queue, self._base)
        )
        if created is None:
            return None
        stat, (found, base) = created
        nodes = nodes_in(found)
        if not nodes or nodes[0].token != self._nodes.token:
            self._nodes.leave(queue)  # a client without a limit was faster
            return None
        fence = self._fences.of(stat.mzxid, base)
        if fence is None or not is_unchanged(stat.mzxid, found):
            fences = yield from self._nodes.rewrite()
            fence = fences[queue]
        waited = started - self._wanted.asked if self._has_waited else 0.0
        return TakenSlot(slot.resource, fence, started, waited)

    def _await_place(self, node: Node, seconds: float) -> StoreProtocol[None]:
        """Wait until a node before the own one is deleted, for at most `seconds`."""
        self._has_waited = True
        yield from self._requests.until_deleted(f"{self._turns}/{node.name}", seconds)

    def _await_free(self) -> StoreProtocol[None]:
        """Wait until a slot is free or has another holder, or the deadline has come."""
        self._has_waited = True
        pause, watches = StoreStep(0.0), self._session.watches
        watches.add(pause, frozenset(queue for _, queue in self._queues))
        try:
            yield from self._await_change(pause)
        finally:
            watches.remove(pause)

    def _await_change(self, pause: StoreStep) -> StoreProtocol[None]:
        # Not in the `try`, whose loops must not jump past it: see docs/contributing/interrupts.md.
        _, slots = yield from self._look(watch=self._session.watches.changed)
        if any(slot.first is None for slot in slots):
            return
        kept = [slot for slot in slots if slot.first is not None and slot.first.is_min_hold]
        left = (yield from self._seconds_left(kept)) if kept else []
        if len(left) == len(kept):
            until = self._wanted.deadline - self._clock()
            pause.seconds = max(0.0, min([until, *(seconds + 0.001 for seconds in left)]))
            yield pause

    def _refusal(
        self, slots: Sequence[SlotQueue], before: int
    ) -> StoreProtocol[ZooKeeperRefusal | None]:
        """Return the refusal for slots that all have holders; None to look again.

        A holder that is still there was there at the moment between the look and this one. So at
        that moment no more slots were free than clients were in front.
        """
        left = yield from self._seconds_left(slots)
        if len(slots) - len(left) > before and self._clock() < self._patient_until:
            return None
        why = f"its {self._wanted.limit} slots are held"
        return ZooKeeperRefusal(self._name, min(left, default=0.0), why)

    def _seconds_left(self, slots: Sequence[SlotQueue]) -> StoreProtocol[list[float]]:
        """Return the seconds that holders have left, of those that are still there.

        Minimum holds that are over are removed.
        """
        holders = [(slot.first, f"{slot.queue}/{slot.first.name}") for slot in slots if slot.first]
        # Without `sync`, a server that lags behind could show holders that are gone.
        _, *found = yield from self._requests.ask(
            lambda client: [
                client.sync_async(self._turns),
                *(client.get_async(path) for _, path in holders),
            ]
        )
        now = self._session.servers_time()
        left, over = [], []
        for (node, path), answer in zip(holders, found, strict=True):
            if not isinstance(answer, NoNodeError):
                seconds = seconds_left(answer, now)
                if node.is_min_hold and seconds <= 0:
                    over.append(path)
                else:
                    left.append(seconds)
        if over:
            yield from self._requests.ask(
                lambda client: [client.delete_async(path) for path in over]
            )
        return left


def _slot_queue(resource: str, queue: str, found: Any) -> SlotQueue:
    if isinstance(found, NoNodeError):
        return SlotQueue(resource, queue, None, None)
    names, stat = found
    nodes = in_order(names)
    return SlotQueue(resource, queue, nodes[0] if nodes else None, stat.version)
