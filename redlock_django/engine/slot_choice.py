"""The slot that a call asks for, of a name that several clients may hold at once.

Each slot is a lock of its own, and one attempt asks for one slot. Masters that refuse it show which
slots are taken. A slot is open if it may be free on a majority. On a master that failed it is not
free; on one that granted the slot that was asked for, each other slot may be. A call is refused
once no slot is open; as long as one is, it asks again at once.

For a call that does not wait, a slot that a master has once shown as taken stays taken there. So it
is refused once no slot was free on a majority throughout the call, and asks for no slot twice
unless votes were split or masters failed. Otherwise many clients that see the same slot come free
would ask for one slot after the other, and find each of them taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import Tally

MOST_NAMES = 1000  # of which a process remembers the slots that it has released


class ReleasedSlots:
    """The slots that this process has released, by name.

    A call that asks for the one released last nearly always finds it free. As many threads as there
    are slots then never ask for the same one.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[str, dict[int, None]] = {}  # the slot released last is the last one

    def add(self, name: str, slot: int) -> None:
        """Note that a slot was released."""
        if name not in self._slots and len(self._slots) >= MOST_NAMES:
            self._slots.clear()
        self._slots.setdefault(name, {})[slot] = None

    def take(self, name: str) -> int | None:
        """Return the slot of a name that was released last, for one call; None if none is known."""
        try:
            # One step, because several threads do this.
            return self._slots.get(name, {}).popitem()[0]
        except KeyError:
            return None


class SlotChoice:
    """The slots of `name`, of which a call asks for one after the other."""

    __slots__ = ("_known", "_open", "_taken", "limit", "name")

    def __init__(self, name: str, limit: int, released: ReleasedSlots) -> None:
        self.name = name
        self.limit = limit
        self._known = released.take(name)
        self._open: Sequence[int] = range(limit)
        self._taken = [0] * limit  # for each slot, a bit for each master that showed it as taken

    def resource(self, token: str, called: int | None) -> tuple[str]:
        """Return the resource of the next slot.

        That is the slot that masters named when they called the waiter (`called`), or at first the
        one that this process released last, or any of those that are open. The randomness is that
        of the attempt's token.
        """
        slots = self._open or range(self.limit)
        slot = self._known if called is None else called
        if slot is None or slot >= self.limit:
            slot = slots[int(token[:8], 16) % len(slots)]
        return (slot_resource(self.name, slot),)

    @property
    def is_open(self) -> bool:
        """True if a slot was open at the last attempt."""
        return bool(self._open)

    def note(self, tally: Tally, *, throughout: bool) -> None:
        """Note which slots are open after an attempt that was lost: those taken least often.

        With `throughout`, those that earlier attempts found taken count, too.
        """
        self._known = None
        taken = self._taken if throughout else [0] * self.limit
        failed = 0
        for master, vote in enumerate(tally.votes):
            if vote is None or vote.ballot is Ballot.GRANTED:
                continue
            if vote.ballot is Ballot.FAILED:
                failed |= 1 << master
                continue
            for slot in range(self.limit):
                if vote.taken[slot : slot + 1] != b"0":
                    taken[slot] |= 1 << master
        masters = [(shown | failed).bit_count() for shown in taken]
        least = min(masters)
        is_open = tally.majority(len(tally.votes) - least)
        self._open = [slot for slot, many in enumerate(masters) if is_open and many == least]
