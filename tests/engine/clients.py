"""Simulated clients: programs over the engine's protocols that are paused, interrupted, killed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from redlock_django.backends.redis.backend import retry_delay
from redlock_django.engine import renewal
from redlock_django.engine.errors import (
    LockLost,
    NotAcquired,
    QuorumUnreachable,
    TicketUsed,
)
from redlock_django.engine.protocol.commands import Acquire, Command, Confirm
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Pause, Round, Step
from redlock_django.engine.validity import Lease, LeaseState, RedlockLease, drift
from redlock_django.wire.links.link import Exchange, wake_none
from redlock_django.wire.links.waiters import Waiter
from tests.engine.checker import Checker, Holding, Ticket
from tests.engine.network import Line, Wire
from tests.engine.world import EPOCH, Clock, SimulatedMaster, Violation, World

if TYPE_CHECKING:
    from tests.engine.client_store import SimulatedStore

Program = Generator[Step, float, Any]


class Interrupted(BaseException):
    """A cancellation or Ctrl-C, thrown in by the driver."""


class Client:
    """One process: a clock, a wire to the masters, and one thing it does at a time."""

    def __init__(
        self,
        world: World,
        name: str,
        clock: Clock,
        checker: Checker,
        *,
        wall_error: float,
        stalls: float = 0.0,
        strikes: float = 0.0,
    ) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.checker = checker
        self.rng: Random = world.rng(f"client {name}")
        self.store: SimulatedStore
        self.wire: Wire
        self.hands_on = 0.0  # the part of its locks that it hands on
        self.tickets = self.world.rng(f"tickets {name}")
        self.limit = 1  # how many clients it lets hold a resource at once
        self.gone = False
        self.idle = True
        self.lease: RedlockLease | None = None
        self.waiter: Waiter | None = None
        self.disturbed = 0  # how often it was stopped, or its clock stepped
        self._stalls, self._strikes = stalls, strikes
        self._wall_error = wall_error
        self._program: Program
        self._safe = False  # an interrupt may strike now
        self._ticket = 0
        self._unreachable = 0  # how many acquires in a row found no quorum
        self._rested = -1.0  # when its last pause began
        self._exchange: Exchange | None = None
        self._asked: Tally  # of the last round by which it acquired or extended a lease
        self._tokens: list[str] = []
        self._moments: dict[float, float] = {}  # reading of our clock -> true time
        self._asleep: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None

    @property
    def lines(self) -> list[Line]:
        """Return the lines to all masters."""
        return self.wire.lines

    def line_to(self, master: SimulatedMaster) -> Line | None:
        """Return the line to a master; None if it is not in this client's list."""
        found = self.lines[master.index] if master.index < len(self.lines) else None
        return found if found is not None and found.master is master else None

    @property
    def is_resting(self) -> bool:
        """True if it waits for a lock, and no round of it is under way."""
        return self.waiter is not None and self._exchange is None

    # Pauses, interrupts and the end.

    def hear(self, what: Callable[..., None], *args: Any) -> None:
        """Receive an event: now, or at the end of a pause."""
        if self.gone:
            return
        if self._asleep is None:
            what(*args)
        else:
            self._asleep.append((what, args))

    def pause(self, seconds: float) -> None:
        """Stop for some seconds, wherever it is: a stopped process, a long garbage collection."""
        if self._asleep is not None or self.gone:
            return
        self.world.note(self.name, f"pauses for {seconds:.3f} s")
        self.world.seen["pauses"] += 1
        self.disturbed += 1
        if self.lease and self.clock.when(self.lease.until) < self.world.now + seconds:
            self.world.seen["paused past the deadline"] += 1
        self._asleep = []
        self.world.after(seconds, self._wake)

    def _wake(self) -> None:
        events, self._asleep = self._asleep, None
        for what, args in events or ():
            self.hear(what, *args)

    def jump(self, seconds: float) -> None:
        """Set the wall clock: from now on proposed fences are off by that much."""
        self.world.note(self.name, f"has its wall clock set {seconds:+.3f} s off")
        self._wall_error = seconds

    def leap(self, seconds: float) -> None:
        """Make the clock that leases are measured by leap forward or back."""
        self.world.note(self.name, f"has its own clock leap by {seconds:+.3f} s")
        self.disturbed += 1
        self.clock.step(seconds)

    def doze(self, seconds: float) -> None:
        """Suspend the client, with a clock that does not count the time."""
        if self._asleep is None and not self.gone:
            self.pause(seconds)
            self.leap(-seconds * self.clock.rate)

    def void(self, lease: Lease) -> bool:
        """Return whether a lease is void because our own clock stepped."""
        return self.store.voided(lease)

    def blamed(self) -> None:
        """Note that a majority's clocks seemed to step at once, so that our own clock stepped."""
        self.world.seen["stepped against a majority"] += 1
        if self.lease is None:
            return
        if not self.void(self.lease):
            raise Violation(f"{self.name} still believes in its lease although its clock stepped")
        self.world.seen["lease voided"] += 1

    def interrupt(self) -> None:
        """Throw an interrupt into what the client does, if that can be interrupted."""
        self.hear(self._interrupt)

    def _interrupt(self) -> None:
        if self._safe and not self.idle:
            self._safe = False
            self._abandon()
            self._drive(partial(self._program.throw, Interrupted()))

    def kill(self) -> None:
        """End like kill -9: nothing more is sent; what was sent may still arrive."""
        self.world.note(self.name, "is killed")
        self.world.seen["killed"] += 1
        self.gone = True
        for token in self._tokens:
            self.checker.alive[token] = False
        if self.lease is not None:
            self.world.seen["killed holding"] += 1
            self.checker.ended(self.lease)
        self.checker.asking.pop(self.name, None)
        self.checker.dead.add(self.name)
        self._program.close()
        self.wire.close()

    # The driver of a program.

    def start(self, program: Program) -> None:
        """Run a program from its beginning."""
        self._program = program
        self.idle = False
        self._drive(partial(next, program))

    def _drive(self, resume: Callable[[], Step]) -> None:
        while True:
            self._ticket += 1
            try:
                step = resume()
            except StopIteration:
                self.idle = True
                return
            if self._is_interrupted():
                resume = partial(self._program.throw, Interrupted())
                continue
            if isinstance(step, Pause):
                self._pause_for(step)
                return
            self._send_round(step)
            if self._is_interrupted():
                self._abandon()
                resume = partial(self._program.throw, Interrupted())
            elif step.awaited:
                return
            else:
                resume = partial(self._program.send, self.read())

    def read(self) -> float:
        """Return what our clock shows."""
        now = self.clock.read()
        if self.world.stepping:
            self._moments[now] = self.world.now
        return now

    def _held(self, lease: RedlockLease) -> Holding:
        """Return what the client believes to hold with a lease."""
        # The true time at which its round began.
        began = self._moments.get(lease.started) or self.clock.when(lease.started)
        votes = zip(self.lines, self._asked.votes, strict=True)
        granted = {line.master for line, vote in votes if vote and vote.ballot is Ballot.GRANTED}
        return Holding(self, lease, began, granted)

    def _send_round(self, asked: Round) -> None:
        if not asked.awaited:
            self._exchange = None
            self.wire.begin(self.wire.exchange(asked, wake_none))
            return
        if self.waiter is not None:
            self.waiter.ask()
        self._exchange = self.wire.exchange(asked, partial(self._decided, self._ticket, asked))
        self.wire.begin(self._exchange)

    def _pause_for(self, pause: Pause) -> None:
        seconds, waiter = pause.seconds, self.waiter
        assert seconds >= 0, "a driver cannot sleep for a negative time"
        if waiter is not None:
            self.checker.queues(self.name)
            if waiter.decided:
                self._woken(waiter, self._ticket)
                return
            seconds = waiter.rest(pause)
            waiter.wake = partial(self._woken, waiter, self._ticket)
        if self._rested == self.world.now:
            # The rest of a wait may be too short to move a clock: time would never advance.
            seconds = max(seconds, 1e-6)
        self._rested = self.world.now
        self.world.after(seconds / self.clock.rate, self.hear, self._go_on, self._ticket)

    def _end_pause(self) -> None:
        if self.waiter is not None:
            self.waiter.end_rest()

    def _woken(self, waiter: Waiter, ticket: int) -> None:
        """End a pause that began at `ticket`: now that the waiter is called, or when it is due."""
        self.world.seen["woken"] += waiter.decided
        seconds = 0.0 if waiter.decided else max(waiter.until - self.clock.read(), 1e-6)
        self.world.after(seconds / self.clock.rate, self.hear, self._go_on, ticket)

    def _is_interrupted(self) -> bool:
        if not (self._safe and self._strikes and self.rng.random() < self._strikes):
            return False
        # No promise covers a second interrupt, into the undo of the first.
        self._safe = False
        self.world.note(self.name, "is interrupted")
        self.world.seen["interrupted"] += 1
        return True

    def _abandon(self) -> None:
        exchange = self._exchange
        self._end_pause()
        self._exchange = None
        if exchange is not None:
            exchange.abandon()
            if exchange.tally.granted:
                self.world.seen["interrupted with grants out"] += 1

    def _decided(self, ticket: int, asked: Round) -> None:
        _watch(self.world, asked.commands, asked.tally)
        if not isinstance(asked.commands[0], Confirm):
            self._asked = asked.tally
        # The votes of one round may all come from the wire's own `begin`.
        self.world.after(0.0, self.hear, self._go_on, ticket)

    def _go_on(self, ticket: int) -> None:
        if ticket != self._ticket:
            return
        if self._stalls > 0 and self.rng.random() < self._stalls:
            seconds = self.rng.uniform(0, 1.5 * self.store.settings.max_ttl)
            if self.rng.random() < 0.5:
                self.pause(seconds)
                self.hear(self._send, ticket, None)
            else:
                # The pause comes right after the clock is read.
                now = self.read()
                self.pause(seconds)
                self.hear(self._send, ticket, now)
            return
        self._send(ticket, None)

    def _send(self, ticket: int, now: float | None) -> None:
        if ticket == self._ticket:
            self._exchange = None
            self._end_pause()
            shown = self.read() if now is None else now
            self._drive(partial(self._program.send, shown))

    # Programs.

    def live(
        self,
        names: list[str],
        ttls: tuple[float, float],
        *,
        busy: float,
        two: float,
        min_holds: float,
        stop_at: float,
    ) -> Program:
        """Acquire, hold, renew and release locks in a loop, some of them with a minimum hold."""
        rng, holds = self.rng, self.world.rng(f"min holds {self.name}")
        while True:
            # Without a quorum it asks less and less often, as a user would: most rounds would
            # find no master to ask, and test nothing.
            yield Pause(rng.expovariate(1 / max(busy, min(0.05 * self._unreachable, 0.5))))
            if self.world.now >= stop_at:
                return
            if (ticket := self._next_ticket()) is not None:
                yield from self._take(ticket, rng.uniform(*ttls))
                continue
            if rng.random() < two and len(names) > 1:
                resources = tuple(rng.sample(names, 2))
            else:
                resources = (rng.choice(names),)
            ttl = rng.uniform(*ttls)
            wait = rng.choice((0.0, 0.0, rng.uniform(0, 1.5)))
            if self._unreachable > 1:
                wait = 0.0
            hold, min_hold = rng.uniform(0, 1.6) * ttl, 0.0
            if holds.random() < min_holds:
                min_hold = holds.uniform(0, 1) * (ttl - drift(ttl))
                hold *= holds.choice((0.1, 1.0))
            yield from self.once(resources, ttl, wait, hold, min_hold)

    def once(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        hold: float,
        min_hold: float = 0.0,
    ) -> Program:
        """Acquire a lock, hold it for some seconds, release it."""
        self._safe = True
        disturbed = self.disturbed
        limit = self.limit if len(resources) == 1 else 1
        self.checker.asks(self.name, resources, wait / self.clock.rate, limit)
        try:
            lease = yield from self.store.acquire(resources, ttl, wait, '{"pid":1}', limit)
        except NotAcquired as error:
            kind = "unreachable" if isinstance(error, QuorumUnreachable) else "locked"
            if kind == "locked" and limit > 1 and self.disturbed == disturbed:
                self.checker.refused(self.name, wait, error, self.wire.master_timeout)
            self.world.seen[kind] += 1
            self._unreachable = self._unreachable + 1 if kind == "unreachable" else 0
            self.world.note(self.name, "gives up:", error)
            return
        except Interrupted:
            self.world.note(self.name, "has undone")
            return
        finally:
            self._safe = False
            asked = self.checker.asking.pop(self.name, None)
        self._unreachable = 0
        if min_hold:
            lease = replace(lease, earliest_end=lease.started + min_hold)
        self.lease = lease
        held = self._held(lease)
        self.checker.granted(held)
        self.checker.turn(held, asked)
        yield from self._hold(ttl, hold)

    def _next_ticket(self) -> Ticket | None:
        """Return a ticket that another client has made: often a new one, sometimes an old one."""
        tickets = self.checker.tickets
        if not tickets or self.tickets.random() < 0.4:
            return None
        return tickets[-1] if self.tickets.random() < 0.8 else self.tickets.choice(tickets)

    def _give(self, lease: Lease, ttl: float) -> Program:
        """Hand a lease on in place of a release, now and then; return whether that was done."""
        if lease.earliest_end or not self.hands_on or self.tickets.random() > self.hands_on:
            return False
        if self.read() >= lease.until:
            self.world.seen["lost before a hand-on"] += 1
            return False
        self._safe = True
        drawn = len(self._tokens)
        try:
            handed = yield from self.store.acquire(
                lease.names, ttl, 0.0, '{"handed_on":1}', lease.limit, lease
            )
        except (LockLost, NotAcquired) as error:
            self.world.seen[f"not handed on: {type(error).__name__}"] += 1
            return False
        except Interrupted:
            self.world.seen["interrupted handing on"] += 1
            return False
        finally:
            self._safe = False
            # A ticket that no client takes ends with its TTL.
            for token in self._tokens[drawn:]:
                self.checker.alive[token] = False
        self.lease = None
        if self.read() >= lease.until:  # as `Handing._refuse_lost`
            self.world.seen["handed on too late"] += 1
            self.store.post_release(handed)
        else:
            self.checker.handed_on(self, lease, handed)
        self.store.post_release(lease)
        return True

    def _take(self, ticket: Ticket, ttl: float) -> Program:
        """Take the lock of a ticket, and hold it."""
        self._safe = True
        try:
            handed = replace(ticket.lease, home=None)
            lease = yield from self.store.acquire(
                handed.names, ttl, 0.0, '{"pid":1}', handed.limit, handed
            )
        except (TicketUsed, LockLost, NotAcquired) as error:
            self.world.seen[f"not taken: {type(error).__name__}"] += 1
            if isinstance(error, TicketUsed):
                self.checker.told_used(self.name, ticket)
            return
        except Interrupted:
            self.world.note(self.name, "has undone")
            return
        finally:
            self._safe = False
        self.lease = lease
        self.checker.resumed(ticket, self._held(lease))
        yield from self._hold(ttl, self.rng.uniform(0, 1.6) * ttl)

    def _hold(self, ttl: float, hold: float) -> Program:
        self._safe = True
        try:
            yield from self._renew(ttl, self.read() + hold)
        except Interrupted:
            pass
        finally:
            self._safe = False
        if self.lease is not None and (yield from self._give(self.lease, ttl)):
            return
        lease, self.lease = self.lease, None
        assert lease is not None
        self.checker.ended(lease)
        self._safe = True
        try:
            yield from self.store.release(lease)
        except Interrupted:
            self.world.seen["interrupted releasing"] += 1
        finally:
            self._safe = False

    def _renew(self, ttl: float, hold_until: float) -> Program:
        """Hold the lease, and in 60 % of cases renew it as the renewal service does."""
        lease = self.lease
        assert lease is not None
        renews, state = self.rng.random() < 0.6, LeaseState.RENEWED
        while True:
            now = self.read()
            if self.void(lease):
                return
            plan = None
            if renews:
                plan = renewal.next_extension(
                    lease, now, ttl=ttl, hold_until=hold_until, state=state
                )
            if plan is None or plan[0] >= hold_until:
                until = min(hold_until, lease.until)
                now = yield Pause(max(until - now, 0.0))
                if now < until - 0.001:
                    continue  # our clock went back meanwhile
                return
            when, asked = plan
            yield Pause(max(when - now, 0.0))
            state, lease = yield from self.store.extend(lease, asked)
            self.lease = lease
            self.world.note(self.name, "extension:", state.value)
            if state is LeaseState.LOST:
                self.world.seen["lost"] += 1
                return
            if state is LeaseState.RENEWED:
                self.checker.renewed(self._held(lease))
            if state is LeaseState.UNKNOWN:
                self.world.seen["unknown"] += 1

    def fresh(self) -> Iterator[str]:
        """Yield tokens, and report each to the checker."""
        while True:
            token = f"{self.rng.getrandbits(128):032x}"
            self._tokens.append(token)
            self.checker.drawn(token)
            yield token

    def proposals(self) -> Iterator[int]:
        """Yield the client's wall clock in µs, with its error."""
        while True:
            yield int((EPOCH + self.world.now + self._wall_error) * 1_000_000)

    def delay(self, attempts: int) -> float:
        """Return the seconds to pause after so many attempts."""
        return retry_delay(attempts, self.rng.uniform)


def _watch(world: World, commands: tuple[Command | None, ...], tally: Tally) -> None:
    """Count the rare states that a round was in."""
    seen, command = world.seen, commands[0]
    if isinstance(command, Confirm):
        seen["confirm rounds"] += 1
        seen["confirm failed"] += tally.verdict is Verdict.LOST
    if isinstance(command, Acquire):
        seen["rounds"] += 1
        lost = tally.verdict is Verdict.LOST
        one = lost and tally.rival_won
        seen["split votes"] += lost and not (one or tally.unreachable)
        seen["refused by one rival"] += one
    if tally.failed:
        seen["stale link"] += any(vote is not None and vote.stale for vote in tally.votes)
    # Most rounds have no granted vote, so there is none to leave out for its clock.
    granted = tally.granted
    if granted and len(tally.counted()) < granted:
        seen["clock off the median"] += 1
