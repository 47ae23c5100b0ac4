"""Every story of two clients and three masters, told with the real scripts and the real rule.

A state holds the masters' memories, what is in flight, and what each client has heard. A
message may be worked on at any time or be lost, and so may its reply; the key of a client
that is through (it released, gave up or crashed) may go away at any time. Only the number
of losses in one story is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from redlock_django.backends.memory import MemoryMaster
from redlock_django.engine.commands import Acquire, Command, Confirm, Terms
from redlock_django.engine.fencing import highest, settled
from redlock_django.engine.quorum import Tally, Verdict, Vote, failed, granted

NOW = 1000  # every master's clock, in µs
MASTERS = 3
TERMS = Terms(
    names=("m0", "m1", "m2"), max_clock_skew=0.0005, restart_delay=0, max_ttl=60, fence_ttl=600
)
VALUES = tuple(f"{client:032x} {{}}" for client in (1, 2))
ASKING, CONFIRMING, HOLDING, THROUGH = range(4)
LOST = failed("lost")

Votes = tuple[Vote | None, ...]


class Memory(NamedTuple):
    """What one master remembers: whose lock (-1: nobody's), and the fence."""

    owner: int
    fence: int


class Client(NamedTuple):
    """What one client knows. `waits` says what each master still has to work on."""

    phase: int
    votes: Votes
    fence: int
    waits: tuple[str, ...]


class State(NamedTuple):
    """One moment of a story; `last` is the fence of the last holder."""

    masters: tuple[Memory, ...]
    clients: tuple[Client, ...]
    last: int
    losses: int


class Rule(NamedTuple):
    """What the client does with its votes, and what a master does with a confirmation."""

    settled: Callable[[Tally, tuple[int, ...]], bool] = settled
    confirm_anywhere: bool = False


class Broken(AssertionError):
    """A story in which two held at once, or a fence went back."""


Part = TypeVar("Part")


def _put(parts: tuple[Part, ...], place: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:place], part, *parts[place + 1 :])


class Search:
    """All stories that begin with these fences and proposals."""

    def __init__(
        self, rule: Rule, fences: tuple[int, ...], proposals: tuple[int, int], losses: int
    ) -> None:
        self.rule = rule
        self.proposals = proposals
        self.losses = losses
        asking = Client(ASKING, (None,) * MASTERS, 0, ("a",) * MASTERS)
        self.first = State(tuple(Memory(-1, fence) for fence in fences), (asking, asking), 0, 0)
        self._work = cache(self._worked)
        self._judge = cache(self._judged)

    def run(self) -> int:
        """Visit every state; returns how many there are. Raises Broken with the story."""
        seen = {self.first}
        stack: list[tuple[State, tuple[str, ...]]] = [(self.first, ())]
        while stack:
            state, story = stack.pop()
            for what, following in self._next(state, story):
                if following not in seen:
                    seen.add(following)
                    stack.append((following, (*story, what)))
        return len(seen)

    def _next(self, state: State, story: tuple[str, ...]) -> Iterator[tuple[str, State]]:
        for number, client in enumerate(state.clients):
            name = "AB"[number]
            if client.phase == HOLDING:
                yield (
                    f"{name} is through",
                    self._with(state, number, client._replace(phase=THROUGH)),
                )
            for place, waits in enumerate(client.waits):
                master = state.masters[place]
                if client.phase == THROUGH and master.owner == number:
                    yield (
                        f"{name}'s key leaves m{place}",
                        self._on(state, place, Memory(-1, master.fence)),
                    )
                if not waits:
                    continue
                rest = _put(client.waits, place, waits[1:])
                told = client._replace(waits=rest)
                memory, vote = self._work(master, number, waits[0], client.fence)
                worked = self._on(state, place, memory)
                what = f"m{place} works on {name}'s {waits[0]}"
                fits = waits[0] == ("a", "c", "", "")[client.phase]
                if not fits or client.votes[place] is not None:
                    # Nobody waits for the reply: that it is lost makes no other story.
                    yield f"{what}, late", self._with(worked, number, told)
                else:
                    yield what, self._heard(worked, number, told, place, vote, story)
                if state.losses < self.losses:
                    less = state._replace(losses=state.losses + 1)
                    if not fits or client.votes[place] is not None:
                        yield (
                            f"{name}'s {waits[0]} to m{place} is lost",
                            self._with(less, number, told),
                        )
                        continue
                    yield (
                        f"{name}'s {waits[0]} to m{place} is lost",
                        self._heard(less, number, told, place, LOST, story),
                    )
                    yield (
                        f"{what}, and the reply is lost",
                        self._heard(
                            worked._replace(losses=less.losses), number, told, place, LOST, story
                        ),
                    )

    @staticmethod
    def _with(state: State, number: int, client: Client) -> State:
        clients = (client, state.clients[1]) if number == 0 else (state.clients[0], client)
        return state._replace(clients=clients)

    @staticmethod
    def _on(state: State, place: int, memory: Memory) -> State:
        masters = _put(state.masters, place, memory)
        return state._replace(masters=masters)

    def _heard(
        self,
        state: State,
        number: int,
        client: Client,
        place: int,
        vote: Vote,
        story: tuple[str, ...],
    ) -> State:
        votes = _put(client.votes, place, vote)
        phase, fence = self._judge(client.phase, votes, client.fence)
        if phase == client.phase:
            return self._with(state, number, client._replace(votes=votes))
        if phase == CONFIRMING:
            waits = tuple(one + "c" for one in client.waits)
            heard = Client(CONFIRMING, (None,) * MASTERS, fence, waits)
            return self._with(state, number, heard)
        # What it has heard is of no use any more: forgetting it joins stories.
        client = Client(phase, (), fence, client.waits)
        if phase == HOLDING:
            if state.clients[1 - number].phase == HOLDING:
                raise Broken("\n".join((*story, "both hold it")))
            if fence <= state.last:
                end = f"{'AB'[number]} holds it with {fence} after {state.last}"
                raise Broken("\n".join((*story, end)))
            state = state._replace(last=fence)
        return self._with(state, number, client)

    def _judged(self, phase: int, votes: Votes, fence: int) -> tuple[int, int]:
        tally = Tally(MASTERS, skew=TERMS.skew, rivals=phase == ASKING)
        for place, vote in enumerate(votes):
            if vote is not None:
                tally.cast(place, vote)
        if tally.verdict is Verdict.PENDING:
            return phase, fence
        if tally.verdict is Verdict.LOST:
            return THROUGH, fence
        if phase == CONFIRMING:
            return HOLDING, fence
        fences = highest(tally, 1)
        return (HOLDING if self.rule.settled(tally, fences) else CONFIRMING), fences[0]

    def _worked(self, memory: Memory, number: int, what: str, fence: int) -> tuple[Memory, Vote]:
        if what == "c" and self.rule.confirm_anywhere:
            stored = max(memory.fence, fence)
            return Memory(memory.owner, stored), granted(NOW, (stored,))
        master = MemoryMaster(lambda: NOW)
        lock, counter = TERMS.lock("r"), TERMS.fence("r")
        master.set(TERMS.marker, b"trusted")
        master.set(counter, b"%d" % memory.fence)
        if memory.owner >= 0:
            master.set(lock, VALUES[memory.owner].encode(), 1000)
        value = VALUES[number]
        command: Command
        if what == "a":
            command = Acquire(
                terms=TERMS, resources=("r",), value=value, ttl=10,
                proposal=self.proposals[number],
            )  # fmt: skip
        else:
            command = Confirm(terms=TERMS, resources=("r",), value=value, fences=(fence,))
        vote = command.vote(master.say(command, 0, b"trusted")[1:])
        now = master.get(lock)
        owner = -1 if now is None else VALUES.index(now.decode())
        # The reasons are for people; without them more stories are one.
        return Memory(owner, int(master.get(counter) or 0)), vote._replace(reason="", ttl=None)
