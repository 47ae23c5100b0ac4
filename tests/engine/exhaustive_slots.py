"""Every trace of clients that ask for slots of one name, with the real script and choice of slots.

Each client asks all masters for one slot, and does not wait. A master may process the message at
any time; it may be lost, and so may its reply. Once the vote is decided, the client holds the slot,
asks for any other one that is open, or is refused. What a client has left or released on a master
may be freed there at any time. Fences and confirm rounds are those of a lock, which
`tests/engine/exhaustive.py` visits. A message that the decided vote has not waited for is not
processed any more.

States that differ only in which master is which count as one.

`uv run python -m tests.engine.exhaustive_slots --clients 3` visits every state from all starts, and
prints how many there are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement
from typing import NamedTuple, TypeVar

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.protocol.commands import Acquire
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.protocol.votes import Ballot, Vote, failed
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.slot_choice import ReleasedSlots, SlotChoice

NOW = 1000  # every master's clock, in µs
ASKING, HOLDING, THROUGH = range(3)
NO_VOTE = -1
Part = TypeVar("Part")
LOST = 0  # the number of the vote of a master that was not heard


class Client(NamedTuple):
    """A client: its phase, in which round it is, and the slot that it asks for or holds."""

    phase: int
    round: int
    slot: int


class Seat(NamedTuple):
    """One client at one master.

    That is the number of its vote, the slots free since its call began, and the slots that a vote
    of an earlier round has shown as taken.
    """

    vote: int
    free: tuple[bool, ...]
    shown: tuple[bool, ...]


class Column(NamedTuple):
    """One master: the owner of each slot, by client and round (-1: none); the clients' seats."""

    owners: tuple[int, ...]
    seats: tuple[Seat, ...]


class State(NamedTuple):
    """The masters, in order, the clients, and how many messages were lost."""

    columns: tuple[Column, ...]
    clients: tuple[Client, ...]
    losses: int


class Broken(AssertionError):
    """A state in which a promise is broken."""


class Search:
    """All traces of so many clients, each of which asks in at most `rounds` rounds."""

    def __init__(
        self,
        masters: int = 3,
        clients: int = 3,
        *,
        limit: int = 2,
        rounds: int = 2,
        losses: int = 0,
    ) -> None:
        self.masters, self.clients, self.limit = masters, clients, limit
        self.rounds, self.losses = rounds, losses
        names = tuple(f"m{index}" for index in range(masters))
        self.deployment = Deployment(names=names, restart_delay=0)
        self._votes: list[Vote] = [failed("lost")]
        self._numbers: dict[Vote, int] = {self._votes[LOST]: LOST}
        self._new = Seat(NO_VOTE, (True,) * limit, (False,) * limit)
        self._work = cache(self._worked)
        self._decide = cache(self._decided)

    def run(self) -> int:
        """Visit every state and return how many there are. Raise Broken for a broken promise."""
        columns = (Column((-1,) * self.limit, (self._new,) * self.clients),) * self.masters
        stack = [
            State(columns, tuple(Client(ASKING, 0, slot) for slot in slots), 0)
            for slots in combinations_with_replacement(range(self.limit), self.clients)
        ]
        seen = set(stack)
        while stack:
            for following in self._next(stack.pop()):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return len(seen)

    def _next(self, state: State) -> Iterator[State]:
        columns, clients, losses = state
        for number, client in enumerate(clients):
            if client.phase == HOLDING:
                yield State(columns, _put(clients, number, client._replace(phase=THROUGH)), losses)
        for index, column in enumerate(columns):
            if index and column == columns[index - 1]:
                continue  # they are sorted: this one equals the last
            for slot, owner in enumerate(column.owners):
                if owner >= 0 and not self._is_live(clients, owner):
                    freed = column._replace(owners=_put(column.owners, slot, -1))
                    yield State(_sorted(_put(columns, index, freed)), clients, losses)
            for number, client in enumerate(clients):
                if client.phase == ASKING and column.seats[number].vote == NO_VOTE:
                    yield from self._processed(state, number, index)

    def _is_live(self, clients: tuple[Client, ...], owner: int) -> bool:
        client = clients[owner // self.rounds]
        return client.phase != THROUGH and client.round == owner % self.rounds

    def _processed(self, state: State, number: int, index: int) -> Iterator[State]:
        columns, clients, losses = state
        column, client = columns[index], clients[number]
        owners, vote = self._work(column.owners, number * self.rounds + client.round, client.slot)
        # A slot is free throughout a call only if no message finds it taken.
        seats = tuple(
            seat._replace(free=tuple(f and o == -1 for f, o in zip(seat.free, owners, strict=True)))
            if one.phase == ASKING
            else self._new
            for one, seat in zip(clients, column.seats, strict=True)
        )
        after = Column(owners, seats)
        yield from self._heard(_put(columns, index, after), clients, losses, number, index, vote)
        if losses < self.losses:
            for lost in (column, after):
                now = _put(columns, index, lost)
                yield from self._heard(now, clients, losses + 1, number, index, LOST)

    def _heard(
        self, columns: tuple[Column, ...], clients: tuple[Client, ...], losses: int,
        number: int, index: int, vote: int,
    ) -> Iterator[State]:  # fmt: skip
        seat = columns[index].seats[number]._replace(vote=vote)
        columns = _put(columns, index, _seated(columns[index], number, seat))
        seats = [column.seats[number] for column in columns]
        verdict, open_slots = self._decide(
            tuple(seat.vote for seat in seats), tuple(seat.shown for seat in seats)
        )
        if verdict is Verdict.PENDING:
            yield State(_sorted(columns), clients, losses)
            return
        client = clients[number]
        if not open_slots and verdict is Verdict.LOST:
            self._check_refusal(columns, number)
        if verdict is Verdict.WON:
            after = _put(clients, number, client._replace(phase=HOLDING))
            self._check_holders(after)
            yield State(self._left(columns, number), after, losses)
        elif not open_slots or client.round + 1 == self.rounds:
            after = _put(clients, number, client._replace(phase=THROUGH))
            yield State(self._left(columns, number), after, losses)
        else:
            shown = _sorted(tuple(self._shown(column, number) for column in columns))
            for slot in open_slots:
                again = Client(ASKING, client.round + 1, slot)
                yield State(shown, _put(clients, number, again), losses)

    def _left(self, columns: tuple[Column, ...], number: int) -> tuple[Column, ...]:
        """Return the columns without what a client knows that does not ask any more."""
        return _sorted(tuple(_seated(column, number, self._new) for column in columns))

    def _shown(self, column: Column, number: int) -> Column:
        """Return a column in which a client has no vote any more, but knows what that has shown."""
        seat = column.seats[number]
        vote = None if seat.vote == NO_VOTE else self._votes[seat.vote]
        shown = seat.shown
        if vote is not None and vote.ballot is Ballot.REFUSED:
            shown = tuple(
                before or vote.taken[slot : slot + 1] != b"0" for slot, before in enumerate(shown)
            )
        return _seated(column, number, seat._replace(vote=NO_VOTE, shown=shown))

    def _check_holders(self, clients: tuple[Client, ...]) -> None:
        held = [client.slot for client in clients if client.phase == HOLDING]
        if len(held) > self.limit:
            raise Broken(f"{len(held)} hold it")
        if len(held) > len({*held}):
            raise Broken("two hold one slot")

    def _check_refusal(self, columns: tuple[Column, ...], number: int) -> None:
        seats = [column.seats[number] for column in columns]
        for slot in range(self.limit):
            free = sum(seat.free[slot] for seat in seats if seat.vote != LOST)
            if free > self.masters // 2:
                raise Broken(f"refused, and slot {slot} was free on a majority throughout")

    def _decided(
        self, votes: tuple[int, ...], shown: tuple[tuple[bool, ...], ...]
    ) -> tuple[Verdict, tuple[int, ...]]:
        tally = Tally(self.masters, rivals=True)
        for index, vote in enumerate(votes):
            if vote != NO_VOTE:
                tally.cast(index, self._votes[vote])
        if tally.verdict is not Verdict.LOST:
            return tally.verdict, ()
        choice = SlotChoice("r", self.limit, ReleasedSlots())
        earlier = Tally(self.masters, rivals=True)
        for index, slots in enumerate(shown):
            taken = b"".join(b"%d" % slot for slot in slots)
            earlier.cast(index, Vote(Ballot.REFUSED, taken=taken))
        choice.note(earlier, throughout=True)
        choice.note(tally, throughout=True)
        return Verdict.LOST, tuple(choice._open)

    def _worked(self, owners: tuple[int, ...], mine: int, slot: int) -> tuple[tuple[int, ...], int]:
        master, deployment = MemoryMaster(lambda: NOW), self.deployment
        master.keyspace.set(deployment.marker, b"trusted")
        locks = [deployment.lock(slot_resource("r", one)) for one in range(self.limit)]
        for lock, owner in zip(locks, owners, strict=True):
            if owner >= 0:
                master.keyspace.set(lock, _value(owner).encode(), 1000)
        resources = (slot_resource("r", slot),)
        ask = Acquire(deployment, resources, _value(mine), 10, NOW, limit=self.limit)
        vote = ask.vote(*master.say(ask, 0, b"trusted")[1:])
        # Reasons are for people only; without them more states are equal.
        vote = vote._replace(said="", ttl=None, fences=())
        number = self._numbers.setdefault(vote, len(self._votes))
        if number == len(self._votes):
            self._votes.append(vote)
        values = [master.keyspace.get(lock) for lock in locks]
        return tuple(-1 if value is None else int(value[:32], 16) for value in values), number


def _value(owner: int) -> str:
    return f"{owner:032x} {{}}"


def _seated(column: Column, number: int, seat: Seat) -> Column:
    return column._replace(seats=_put(column.seats, number, seat))


def _sorted(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    return tuple(sorted(columns))


def _put(parts: tuple[Part, ...], index: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:index], part, *parts[index + 1 :])


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.exhaustive_slots")
    parser.add_argument("--clients", type=int, default=3, help="clients (3)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a client (2)")
    parser.add_argument("--losses", type=int, default=0, help="most losses per trace (0)")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    states = Search(clients=options.clients, rounds=options.rounds, losses=options.losses).run()
    took = time.perf_counter() - began
    sys.stdout.write(f"{states:,} states in {took:.0f} s, and no promise was broken\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
