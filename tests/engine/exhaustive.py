"""Every trace of a few clients and masters, computed with the real scripts and fencing rule.

A state holds the masters' memories, the messages in flight, and what each client has received. A
message may be processed at any time or be lost, and so may its reply. The key of a client that
is done (it released, gave up or crashed) may expire at any time. Only the number of losses in
one trace is bounded.

States that differ only in which master is which count as one.

`uv run python -m tests.engine.exhaustive --masters 5 --clients 2 --losses 1` visits every state
from many starts, and prints how many there are.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import combinations_with_replacement, product, repeat
from struct import Struct
from typing import NamedTuple, TypeVar

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol.commands import Acquire, Command, Confirm
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Vote, failed, granted
from redlock_django.engine.quorum import Tally, Verdict

NOW = 1000  # every master's clock, in µs
LEFT = NOW + 3  # a fence that a crashed writer has left on some masters
NAMES = "ABC"
VALUES = tuple(f"{client:032x} {{}}" for client in range(1, len(NAMES) + 1))
ASKING, CONFIRMING, HOLDING, THROUGH = range(4)
LOST = failed("lost")

Part = TypeVar("Part")
State = bytes  # packed: many million of anything larger do not fit into memory


class Seat(NamedTuple):
    """One client at one master: its vote there, and the messages that are not processed yet."""

    vote: Vote | None
    waits: str


class Column(NamedTuple):
    """One master: the number of its lock's owner (-1: none), its fence, a seat for each client."""

    owner: int
    fence: int
    seats: tuple[Seat, ...]


class Client(NamedTuple):
    """The phase of one client, and the fence that it has or asks for."""

    phase: int
    fence: int


class Move(NamedTuple):
    """One possible event between a client and a master, and the master's column after it."""

    what: str
    column: int
    heard: bool = False
    lost: bool = False


class Rule(NamedTuple):
    """The fencing rule: when a client needs no confirm round, and where a master confirms."""

    stored_by_majority: Callable[[Tally, tuple[int, ...]], bool] = stored_by_majority
    confirm_anywhere: bool = False


class Broken(AssertionError):
    """A trace in which two clients held at once, or a fence went back."""


class Search:
    """All traces that begin with these fences, one per master, and proposals, one per client."""

    def __init__(
        self, rule: Rule, fences: tuple[int, ...], proposals: tuple[int, ...], losses: int
    ) -> None:
        self.rule = rule
        self.proposals = proposals
        self.losses = losses
        self.deployment = Deployment(
            names=tuple(f"m{index}" for index in range(len(fences))),
            max_clock_skew=0.0005,
            restart_delay=0,
            max_ttl=60,
            fence_ttl=600,
        )
        self._columns: list[Column] = []
        self._numbers: dict[Column, int] = {}
        self._clients: list[tuple[Client, ...]] = []
        self._client_numbers: dict[tuple[Client, ...], int] = {}
        self._shape = Struct(f"<{len(fences)}H3H")
        self._moves = cache(self._moved)
        self._work = cache(self._worked)
        self._decide = cache(self._decided)
        self._turn = cache(self._turned)
        seats = (Seat(None, "a"),) * len(proposals)
        columns = sorted(self._number(Column(-1, fence, seats)) for fence in fences)
        asking = (Client(ASKING, 0),) * len(proposals)
        self.first = self._state(columns, asking, 0, 0)

    def run(self) -> int:
        """Visit every state and return how many there are. Raise Broken with the trace."""
        before: dict[State, State | None] = {self.first: None}
        stack = [self.first]
        while stack:
            state = stack.pop()
            try:
                for _, following in self._next(state):
                    if following not in before:
                        before[following] = state
                        stack.append(following)
            except Broken as end:
                raise Broken("\n".join((*self._trace(state, before), str(end)))) from None
        return len(before)

    def _trace(self, state: State, before: dict[State, State | None]) -> list[str]:
        trace = []
        while (earlier := before[state]) is not None:
            trace.append(next(what for what, then in self._next(earlier) if then == state))
            state = earlier
        return trace[::-1]

    def _state(
        self, columns: Iterable[int], clients: tuple[Client, ...], last: int, losses: int
    ) -> State:
        """Pack a state: the columns' numbers, in order, the clients and the last holder's fence."""
        number = self._client_numbers.get(clients)
        if number is None:
            number = self._client_numbers[clients] = len(self._clients)
            self._clients.append(clients)
        return self._shape.pack(*columns, number, last, losses)

    def _number(self, column: Column) -> int:
        number = self._numbers.setdefault(column, len(self._columns))
        if number == len(self._columns):
            self._columns.append(column)
        return number

    def _next(self, state: State) -> Iterator[tuple[str, State]]:
        *columns, kinds, last, losses = self._shape.unpack(state)
        clients = self._clients[kinds]
        for number, client in enumerate(clients):
            if client.phase == HOLDING:
                through = client._replace(phase=THROUGH)
                yield (
                    f"{NAMES[number]} is through",
                    self._state(columns, _put(clients, number, through), last, losses),
                )
            for index, column in enumerate(columns):
                if index and column == columns[index - 1]:
                    continue  # they are sorted: this one equals the last
                for move in self._moves(column, number, client):
                    if move.lost and losses == self.losses:
                        continue
                    rest = columns.copy()
                    rest[index] = move.column
                    after = losses + move.lost
                    if move.heard:
                        yield move.what, self._heard(rest, clients, number, last, after)
                    else:
                        rest.sort()
                        yield move.what, self._state(rest, clients, last, after)

    def _moved(self, index: int, number: int, client: Client) -> tuple[Move, ...]:
        column, name = self._columns[index], NAMES[number]
        moves = []
        if client.phase == THROUGH and column.owner == number:
            freed = self._number(column._replace(owner=-1))
            moves.append(Move(f"{name}'s key leaves {_described(column)}", freed))
        vote, waits = column.seats[number]
        if waits:
            what = f"{_described(column)} works on {name}'s {waits[0]}"
            gone = f"{name}'s {waits[0]} to {_described(column)} is lost"
            before = column.owner, column.fence
            *after, said = self._work(*before, number, waits[0], client)

            def seated(vote: Vote | None, owner: int, fence: int) -> int:
                seats = _put(column.seats, number, Seat(vote, waits[1:]))
                return self._number(Column(owner, fence, seats))

            if waits[0] != ("a", "c", "", "")[client.phase] or vote is not None:
                # The client does not wait for the reply: its loss makes no other trace.
                moves += [
                    Move(f"{what}, late", seated(vote, *after)),
                    Move(gone, seated(vote, *before), lost=True),
                ]
            else:
                moves += [
                    Move(what, seated(said, *after), heard=True),
                    Move(gone, seated(LOST, *before), heard=True, lost=True),
                    Move(
                        f"{what}, and the reply is lost",
                        seated(LOST, *after),
                        heard=True,
                        lost=True,
                    ),
                ]
        return tuple(moves)

    def _heard(
        self, rest: list[int], clients: tuple[Client, ...], number: int, last: int, losses: int
    ) -> State:
        rest.sort()
        client = clients[number]
        votes = tuple(self._columns[index].seats[number].vote for index in rest)
        after = self._decide(client, votes)
        if after.phase == client.phase:
            return self._state(rest, clients, last, losses)
        # What it received is not needed any more: dropping it merges states.
        more = "c" if after.phase == CONFIRMING else ""
        rest = sorted(self._turn(index, number, more) for index in rest)
        if after.phase == HOLDING:
            if any(other.phase == HOLDING for other in clients):
                raise Broken("two hold it")
            if after.fence <= last:
                raise Broken(f"{NAMES[number]} holds it with {after.fence} after {last}")
            last = after.fence
        return self._state(rest, _put(clients, number, after), last, losses)

    def _turned(self, index: int, number: int, more: str) -> int:
        column = self._columns[index]
        seat = Seat(None, column.seats[number].waits + more)
        return self._number(column._replace(seats=_put(column.seats, number, seat)))

    def _decided(self, client: Client, votes: tuple[Vote | None, ...]) -> Client:
        tally = Tally(len(votes), skew=self.deployment.skew, rivals=client.phase == ASKING)
        for index, vote in enumerate(votes):
            if vote is not None:
                tally.cast(index, vote)
        if tally.verdict is Verdict.PENDING:
            return client
        if tally.verdict is Verdict.LOST:
            return client._replace(phase=THROUGH)
        if client.phase == CONFIRMING:
            return client._replace(phase=HOLDING)
        fences = highest(tally, 1)
        agreed = self.rule.stored_by_majority(tally, fences)
        return Client(HOLDING if agreed else CONFIRMING, fences[0])

    def _worked(
        self, owner: int, stored: int, number: int, what: str, client: Client
    ) -> tuple[int, int, Vote]:
        if what == "c" and self.rule.confirm_anywhere:
            stored = max(stored, client.fence)
            return owner, stored, granted(NOW, (stored,))
        master, deployment = MemoryMaster(lambda: NOW), self.deployment
        lock, counter = deployment.lock("r"), deployment.fence("r")
        master.keyspace.set(deployment.marker, b"trusted")
        master.keyspace.set(counter, b"%d" % stored)
        if owner >= 0:
            master.keyspace.set(lock, VALUES[owner].encode(), 1000)
        value = VALUES[number]
        command: Command
        if what == "a":
            command = Acquire(
                deployment=deployment, resources=("r",), value=value, ttl=10,
                proposal=self.proposals[number],
            )  # fmt: skip
        else:
            command = Confirm(
                deployment=deployment, resources=("r",), value=value, fences=(client.fence,)
            )
        vote = command.vote(*master.say(command, 0, b"trusted")[1:])
        now = master.keyspace.get(lock)
        owner = -1 if now is None else VALUES.index(now.decode())
        # Reasons are for people only; without them more states are equal.
        return owner, int(master.keyspace.get(counter) or 0), vote._replace(said="", ttl=None)


def _put(parts: tuple[Part, ...], index: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:index], part, *parts[index + 1 :])


def _described(column: Column) -> str:
    lock = f"{NAMES[column.owner]}'s lock" if column.owner >= 0 else "no lock"
    return f"a master with {lock} and fence {column.fence}"


def starts(masters: int, clients: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield fences and proposals to start with, one pair of each kind but for the names."""
    for fences in combinations_with_replacement((0, LEFT), masters):
        for others in product((NOW + 1, NOW + 2, NOW + 5), repeat=clients - 1):
            yield fences, (NOW + 1, *others)


def visit(start: tuple[tuple[int, ...], tuple[int, ...]], losses: int) -> tuple[int, str]:
    """Return how many states follow from a start, and the trace of a broken promise or ""."""
    gc.disable()  # millions of states have no reference cycles to look for
    try:
        return Search(Rule(), *start, losses).run(), ""
    except Broken as trace:
        return 0, str(trace)
    finally:
        gc.enable()
        gc.collect()


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.exhaustive")
    parser.add_argument("--masters", type=int, default=3, help="masters (3)")
    parser.add_argument("--clients", type=int, default=2, choices=(2, 3), help="clients (2)")
    parser.add_argument("--losses", type=int, default=1, help="most losses per trace (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(argv)
    began, states = time.perf_counter(), 0
    every = list(starts(options.masters, options.clients))
    with ProcessPoolExecutor(options.jobs) as pool:
        visits = pool.map(visit, every, repeat(options.losses))
        for (fences, proposals), (found, trace) in zip(every, visits, strict=True):
            start = f"fences {fences} and proposals {proposals}"
            if trace:
                pool.shutdown(wait=False, cancel_futures=True)
                sys.stdout.write(f"{trace}\n{start}\n")
                return 1
            states += found
            sys.stdout.write(f"{found:12,} states with {start}\n")
            sys.stdout.flush()
    took = time.perf_counter() - began
    sys.stdout.write(f"{states:12,} states in {took:.0f} s, and no promise was broken\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
