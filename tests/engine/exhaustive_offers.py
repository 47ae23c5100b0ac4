"""Every trace of a holder's release and of waiters that it may grant the lock, with the real rules.

The holder has the lock on every master, and has sent its release to all of them. Each waiter asks
all masters; a waiter whose attempt was lost may be granted the lock by a release, ask again, or
leave, at any time. A master processes what a client sends it in order, and a client receives what
a master sends it in order; all else may happen in any order. A message to a master may be lost, and
so may a reply. A lock that no client may count any more may expire at any time, and a turn may end.
Fences and confirm rounds are those of a lock, which `tests/engine/exhaustive.py` visits.

States that differ only in which master is which count as one.

`uv run python -m tests.engine.exhaustive_offers --attempts 2 1` visits every state, and prints how
many there are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import NamedTuple

from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.backends.memory.queue import StoredOffer
from redlock_django.engine.attempt import Attempt
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import LOST, WON
from redlock_django.engine.steps import proof_of_grant
from redlock_django.engine.undo import undo_of, undo_of_late_grant
from tests.engine.exhaustive import Broken
from tests.engine.exhaustive import _put as put
from tests.engine.masters import MARKER

NOW = 1_000_000  # every master's clock, in µs
ASKING, RESTING, HOLDING, THROUGH = range(4)
HOLDER = 0  # the number of the holder's token; a waiter has one for each of its attempts
UNHEARD = failed("")
QUEUED = Vote(Ballot.REFUSED, ahead=0)


class Message(NamedTuple):
    """A command that a client has sent to a master: an acquire, or a release, of a token."""

    token: int
    asks: bool = False
    calls: bool = True
    leaves: bool = False
    buries: bool = False


class Seat(NamedTuple):
    """A waiter at a master: what is on the way there, and back; its vote in the last attempt.

    On the way back are votes, and None for a lock that a release has set for the waiter.
    """

    there: tuple[Message, ...]
    back: tuple[Vote | int | None, ...] = ()
    vote: Vote | None = None
    granted: bool = False  # by a release that the waiter has counted


class Column(NamedTuple):
    """A master: the token of its lock (-1: none), its queue, offers and tombstones; the seats."""

    lock: int
    queue: tuple[tuple[bytes, float], ...]
    offers: tuple[tuple[bytes, int], ...]
    buried: frozenset[int]
    frees: bool  # the holder's release is on its way
    seats: tuple[Seat, ...]


class Client(NamedTuple):
    """A waiter: its phase, its attempt, and whether masters may grant it that in its pause."""

    phase: int
    attempt: int = 0
    is_open: bool = False


State = tuple[tuple[int, ...], tuple[Client, ...], int]
"""The numbers of the masters, in order; the waiters; how many messages were lost."""


class Search:
    """All traces of clients that ask so often each, of which the first so many wait."""

    def __init__(self, *attempts: int, waiters: int = 2, masters: int = 3, losses: int = 0) -> None:
        self.attempts, self.losses = attempts, losses
        names = tuple(f"m{index}" for index in range(masters))
        self.deployment = Deployment(names=names, restart_delay=0)
        numbers = count(HOLDER + 1)
        self.tokens = [[next(numbers) for _ in range(one)] for one in attempts]
        self.values = [f"{number:032x} {{}}" for number in range(next(numbers))]
        self.hashes = {
            proof_of_grant(value[:32].encode(), MARKER).decode(): token
            for token, value in enumerate(self.values)
        }
        channels = [self.deployment.wake(str(number)) for number in range(len(attempts))]
        self.names = [
            f"{channel} 1" if nth < waiters else "" for nth, channel in enumerate(channels)
        ]
        self._columns: list[Column] = []
        self._numbers: dict[Column, int] = {}
        self._work = cache(self._worked)
        self._judge = cache(self._judged)
        self._happens = cache(self._happened)
        self._send = cache(self._sent)
        seats = tuple(Seat((Message(tokens[0], asks=True),)) for tokens in self.tokens)
        first = self._number(Column(HOLDER, (), (), frozenset(), True, seats))
        self.first: State = (first,) * masters, (Client(ASKING),) * len(attempts), 0

    def run(self) -> int:
        """Visit every state and return how many there are. Raise Broken if two hold the lock."""
        stack, seen = [self.first], {self.first}
        while stack:
            for following in self._next(stack.pop()):
                if following not in seen:
                    if sum(client.phase == HOLDING for client in following[1]) > 1:
                        raise Broken("two hold it")
                    seen.add(following)
                    stack.append(following)
        return len(seen)

    def _number(self, column: Column) -> int:
        number = self._numbers.setdefault(column, len(self._columns))
        if number == len(self._columns):
            self._columns.append(column)
        return number

    # The steps.

    def _next(self, state: State) -> Iterator[State]:
        columns, clients, losses = state
        for number, client in enumerate(clients):
            for after, undo in self._acts(number, client):
                sent = (self._send(column, number, after, undo) for column in columns)
                yield tuple(sorted(sent)), put(clients, number, after), losses
        for index, column in enumerate(columns):
            if index and column == columns[index - 1]:
                continue  # they are sorted: this one equals the last
            for number, new, lost in self._happens(column, clients):
                if losses + lost <= self.losses:
                    rest = put(columns, index, new)
                    yield self._judged_state(rest, clients, number, losses + lost)

    def _acts(self, number: int, client: Client) -> Iterator[tuple[Client, Message]]:
        """Yield what a waiter may do by itself: release, leave, or ask again."""
        if client.phase == THROUGH:
            return
        tokens, nth = self.tokens[number], client.attempt
        yield Client(THROUGH), Message(tokens[nth], leaves=True)
        if client.phase == RESTING and nth + 1 < len(tokens):
            yield Client(ASKING, nth + 1), Message(tokens[nth], calls=False)

    def _sent(self, number: int, waiter: int, after: Client, message: Message) -> int:
        """Return a master to which a waiter has sent a message, or an attempt and an undo."""
        column = self._columns[number]
        seat = column.seats[waiter]
        sent: tuple[Message, ...] = (message,)
        if after.phase == ASKING:
            # What was silent until now is undone before: see `Wait.undo_silent`.
            ask = Message(self.tokens[waiter][after.attempt], asks=True)
            sent = (message, ask) if seat.vote is None else (ask,)
        return self._number(_seated(column, waiter, Seat(seat.there + sent)))

    def _happened(self, number: int, clients: tuple[Client, ...]) -> list[tuple[int, int, bool]]:
        """Return what may happen at a master.

        That is the waiter that may be served by it, the master after it, and whether a message was
        lost.
        """
        column = self._columns[number]
        found = [(-1, after, lost) for after, lost in self._alone(column, clients)]
        if column.lock >= 0 and not self._may_count(column.lock, clients):
            found.append((-1, column._replace(lock=-1), False))
        for waiter, seat in enumerate(column.seats):
            if seat.there:
                found += [(-1, *one) for one in self._processed(column, waiter, clients)]
            if seat.back:
                after = self._heard(seat, clients[waiter])
                found.append((waiter, _seated(column, waiter, after), False))
        return [(waiter, self._number(after), lost) for waiter, after, lost in found]

    def _alone(self, column: Column, clients: tuple[Client, ...]) -> Iterator[tuple[Column, bool]]:
        """Yield what may happen to a master without a waiter."""
        for nth, (name, score) in enumerate(column.queue):
            if score < -NOW:  # its turn is over
                yield column._replace(queue=put(column.queue, nth, (name, -1.0))), False
        if column.frees:
            taken = column._replace(frees=False)
            after, _ = self._work(taken, -1, Message(HOLDER))
            yield self._without_unheard(after, clients), False
            yield taken, True

    def _may_count(self, token: int, clients: tuple[Client, ...]) -> bool:
        """Return whether a waiter may count a lock with this token: then its TTL is not over."""
        return any(
            client.phase != THROUGH and token == tokens[client.attempt]
            for client, tokens in zip(clients, self.tokens, strict=True)
        )

    def _processed(
        self, column: Column, waiter: int, clients: tuple[Client, ...]
    ) -> Iterator[tuple[Column, bool]]:
        """Yield a master that has processed a waiter's message, or to which it was lost."""
        message, *rest = column.seats[waiter].there
        taken = _seated(column, waiter, column.seats[waiter]._replace(there=tuple(rest)))
        after, vote = self._work(taken, waiter, message)
        after = self._without_unheard(after, clients)
        client = clients[waiter]
        if not message.asks or not self._hears(waiter, client, message.token):
            yield after, False
            yield taken, True
            return
        assert vote is not None
        for one, heard in ((after, vote), (after, UNHEARD), (taken, UNHEARD)):
            seat = one.seats[waiter]
            back = (*seat.back, heard)
            yield _seated(one, waiter, seat._replace(back=back)), heard is UNHEARD

    def _hears(self, waiter: int, client: Client, token: int) -> bool:
        """Return whether what a master says of a token makes a difference to its waiter.

        What it has granted to an earlier attempt has been undone, before the next one.
        """
        return client.phase in (ASKING, RESTING) and token == self.tokens[waiter][client.attempt]

    def _without_unheard(self, column: Column, clients: tuple[Client, ...]) -> Column:
        """Drop grants that make no difference; leave of the others that they are grants."""
        for waiter, seat in enumerate(column.seats):
            back = tuple(
                None if isinstance(one, int) else one
                for one in seat.back
                if not isinstance(one, int) or self._hears(waiter, clients[waiter], one)
            )
            column = _seated(column, waiter, seat._replace(back=back))
        return column

    # What a waiter receives.

    def _heard(self, seat: Seat, client: Client) -> Seat:
        """Return the seat of a waiter that has received the next answer, or grant, there."""
        answer, *rest = seat.back
        seat = seat._replace(back=tuple(rest))
        if answer is None:
            counts = client.phase == RESTING and client.is_open and is_counted(seat.vote)
            return seat._replace(granted=True) if counts else seat
        assert isinstance(answer, Vote)
        if client.phase == RESTING and answer.ballot is Ballot.GRANTED:  # see `Links.undo_late`
            undo = Message(-1, calls=False, buries=True)
            seat = seat._replace(there=(*seat.there, undo))
        return seat._replace(vote=answer if client.phase == ASKING else _kind(answer))

    def _judged_state(
        self, columns: tuple[int, ...], clients: tuple[Client, ...], number: int, losses: int
    ) -> State:
        """Return the state once a waiter, if any, has judged what it has received."""
        if number < 0:
            return tuple(sorted(columns)), clients, losses
        client = clients[number]
        seats = [self._columns[column].seats[number] for column in columns]
        undone, calls, after = frozenset[int](), False, client
        if client.phase == ASKING:
            after, undone, calls = self._judge(number, client, tuple(one.vote for one in seats))
        elif 2 * sum(seat.granted for seat in seats) > len(seats):
            after = Client(HOLDING, client.attempt)
        token = self.tokens[number][client.attempt]
        found = []
        for nth, (column, seat) in enumerate(zip(columns, seats, strict=True)):
            there = tuple(one._replace(token=token) if one.token < 0 else one for one in seat.there)
            if nth in undone:
                there = (*there, Message(token, calls=calls))
            if after.phase == HOLDING:
                seat = Seat(there)
            elif after.phase == RESTING:
                seat = seat._replace(there=there, vote=_kind(seat.vote))
            found.append(self._number(_seated(self._columns[column], number, seat)))
        return tuple(sorted(found)), put(clients, number, after), losses

    def _judged(
        self, number: int, client: Client, votes: tuple[Vote | None, ...]
    ) -> tuple[Client, frozenset[int], bool]:
        """Return the waiter after these votes, the masters that it sends an undo, and its calls."""
        attempt = Attempt(self._ask(number, self.tokens[number][client.attempt]), 0.0)
        for master, vote in enumerate(votes):
            if vote is not None:
                attempt.tally.cast(master, vote)
        if attempt.tally.verdict is WON:
            return client._replace(phase=HOLDING), frozenset(), False
        if attempt.tally.verdict is not LOST:
            return client, frozenset(), False
        undo = attempt.undo(frozenset(), leave=False)
        commands = undo.commands if undo else ()
        releases = [command for command in commands if isinstance(command, Release)]
        undone = frozenset(master for master, one in enumerate(commands) if one is not None)
        is_open = attempt.offered() is not None
        calls = bool(releases) and releases[0].calls
        return Client(RESTING, client.attempt, is_open), undone, calls

    # What a master does.

    def _ask(self, number: int, token: int) -> Acquire:
        return Acquire(
            self.deployment, ("r",), self.values[token], 60.0, NOW, self.names[number],
            NOW - 10 + number,
        )  # fmt: skip

    def _command(self, number: int, message: Message) -> Command:
        value = self.values[message.token]
        if number < 0:
            return Release(self.deployment, ("r",), value)
        ask = self._ask(number, message.token)
        if message.asks:
            return ask
        if message.buries:
            release = undo_of_late_grant(ask)
            release.bury = True
            return release
        return undo_of(ask, leave=message.leaves, calls=message.calls)

    def _worked(self, column: Column, number: int, message: Message) -> tuple[Column, Vote | None]:
        """Return a master after it has processed a message, and its vote."""
        deployment, values = self.deployment, self.values
        master = MemoryMaster(lambda: NOW)
        keyspace = master.keyspace
        published: list[str] = []

        def publish(channel: str, text: bytes) -> int:
            published.append(text.decode())
            return 1

        keyspace.publish = publish
        keyspace.set(deployment.marker, MARKER)
        keyspace.set(deployment.fence("r"), b"5")
        if column.lock >= 0:
            keyspace.set(deployment.lock("r"), values[column.lock].encode(), 60_000)
        for token in column.buried:
            keyspace.set(deployment.tomb(values[token][:32]), b"1")
        queue, offers = deployment.queue("r"), deployment.offers("r")
        if column.queue:
            keyspace.sets[queue] = dict(column.queue)
        if column.offers:
            keyspace.hashes[offers] = {
                name: StoredOffer(
                    values[token].encode(), NOW, NOW, 60_000, 500_000, 600_000, 60_000, MARKER,
                    deployment.tomb(values[token][:32]), deployment.marker, deployment.fence("r"),
                )
                for name, token in column.offers
            }  # fmt: skip
        command = self._command(number, message)
        reply = master.say(command, 0, MARKER)
        vote = None
        if message.asks:
            vote = command.vote(reply[1:])._replace(reason="", ttl=None, fences=(5,))
            if vote.ballot is Ballot.GRANTED:
                vote = granted(NOW, (5,))
        lock = keyspace.get(deployment.lock("r"))
        seats = column.seats
        for text in published:
            name, _, rest = text.partition("=")
            if rest:
                other = self.names.index(name)
                token = self.hashes[rest.split()[0]]
                seat = seats[other]
                seats = put(seats, other, seat._replace(back=(*seat.back, token)))
        return Column(
            -1 if lock is None else values.index(lock.decode()),
            tuple(sorted(keyspace.sorted_set(queue).items(), key=lambda one: one[::-1])),
            tuple(
                (name, values.index(offer[0].decode()))
                for name, offer in sorted(keyspace.hash(offers).items())
            ),
            column.buried | {message.token} if message.buries else column.buried,
            column.frees,
            seats,
        ), vote


def is_counted(vote: Vote | None) -> bool:
    """Return whether a grant of a master with this vote counts, as in `Offer.is_from`."""
    return vote is not None and vote.ahead >= 0


def _kind(vote: Vote | None) -> Vote | None:
    """Return the kind of a vote in a round that was lost: queued, or not."""
    return QUEUED if is_counted(vote) else vote and UNHEARD


def _seated(column: Column, number: int, seat: Seat) -> Column:
    return column._replace(seats=put(column.seats, number, seat))


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.exhaustive_offers")
    parser.add_argument("--attempts", type=int, nargs="+", default=[1, 1], help="of each waiter")
    parser.add_argument("--waiters", type=int, default=2, help="how many of them wait (2)")
    parser.add_argument("--masters", type=int, default=3, help="masters (3)")
    parser.add_argument("--losses", type=int, default=0, help="most losses per trace (0)")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    states = Search(
        *options.attempts, waiters=options.waiters, masters=options.masters, losses=options.losses
    ).run()
    took = time.perf_counter() - began
    sys.stdout.write(f"{states:,} states in {took:.0f} s, and no promise was broken\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
