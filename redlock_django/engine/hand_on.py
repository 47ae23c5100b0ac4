"""Hand a lease on to another client: the rounds of the giver and of the client that takes it.

Both replace the token of the lock on a majority of the masters. A master replaces it once, so of
several clients with the same ticket only one can have a majority; and since no master is without
the lock in between, no other client holds it, and its fence stays the same.
"""

from __future__ import annotations

from dataclasses import replace

from redlock_django.engine.attempt import SPLIT_ROUNDS, Client, to_masters
from redlock_django.engine.errors import LockLost, QuorumUnreachable, RedlockError, TicketUsed
from redlock_django.engine.protocol.commands import Release, Restore, Swap
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import WON, Tally
from redlock_django.engine.refusal import unreachable
from redlock_django.engine.steps import Pause, Protocol, Round
from redlock_django.engine.validity import Lease, RedlockLease, end_of_min_hold, valid_until

NEAR = 0.002
"""Seconds of a round among near masters, for which the random delays of clients are made."""

LONGEST_PAUSE = 2.0
"""Seconds that a taker pauses at most before it tries again."""

IN_TRANSIT = '{"handed_on":1}'
"""The holder of a lock whose taker has undone its swap, in a store that does not keep the giver."""


def hand_on(
    client: Client,
    lease: RedlockLease,
    token: str,
    ttl: float,
    holder: str,
    *,
    now: float,
    bury: bool = False,
) -> Protocol[RedlockLease]:
    """Hand a lease on: replace its token by `token`, for at least `ttl` seconds from now.

    With `bury`, the links are not those that sent the acquire of the lease, which may still arrive:
    where its token was not replaced, a tombstone keeps it from being set.

    Returns the lease that the client with the ticket takes. If too few masters answer, or only
    after the end of the lease, it gets its own token back, and still is what it was: the giver
    releases it, or has extended it meanwhile. Raises LockLost, QuorumUnreachable.
    """
    if now >= lease.until:
        raise lost_before(lease)
    handed = replace(lease, token=token, holder=holder, ttl=ttl, started=now)
    swap = _Swapping(client, lease, handed)
    try:
        now = yield swap.round
        if swap.won and now < lease.until:
            if left := swap.left(lease, bury=bury):
                yield left
            until = max(lease.until, valid_until(ttl, handed.started))
            return replace(handed, until=until, reached=swap.tally.reached, tally=swap.tally)
    except GeneratorExit:
        raise
    except BaseException:
        yield from swap.undo()
        raise
    if swap.denied:
        yield swap.release()
        raise lost_before(lease)
    yield from swap.undo()
    if now >= lease.until:  # unless it was extended meanwhile: then the giver has it again
        raise lost_before(lease)
    raise unreachable(client.deployment, lease.names, swap.tally)


def resume(
    client: Client, handed: Lease, ttl: float, holder: str, *, now: float, home: object = None
) -> Protocol[RedlockLease]:
    """Take a lease that was handed on, by its token: replace it by a new one.

    A client that cannot replace it on a majority undoes that, so that another attempt can take
    it. If several clients try at once and none of them is proved to have a majority, each tries
    again after a random time, as clients that acquire a lock do.

    Raises TicketUsed, LockLost if the lock has ended, QuorumUnreachable.
    """
    for attempts in range(1, SPLIT_ROUNDS + 1):
        taken = RedlockLease(
            handed.resources, next(client.tokens), holder, ttl, now, valid_until(ttl, now),
            handed.fences, attempts=attempts, home=home, limit=handed.limit,
            givers=handed.givers,
        )  # fmt: skip
        # As long as the taker says: the lock of a taker that dies is free when its TTL is over.
        swap = _Swapping(client, handed, taken, exactly=True)
        try:
            now = yield swap.round
            if swap.won and now < taken.until:
                end = end_of_min_hold(handed, swap.left_before, now)
                return replace(
                    taken, reached=swap.tally.reached, tally=swap.tally, earliest_end=end
                )
        except GeneratorExit:
            raise
        except BaseException:
            yield from swap.undo()
            raise
        if swap.is_refused:
            yield swap.release()  # the token of the ticket would only be in the way of the holder
            break
        yield from swap.undo()
        if not (swap.is_split or swap.tally.only_stale):
            break
        # Takers that are far from each other undo what they took at moments that are as far apart.
        spread = max(1.0, (now - taken.started) / NEAR)
        now = yield Pause(min(client.delay(attempts) * spread, LONGEST_PAUSE))
    raise swap.refusal(late=swap.won)


class _Swapping:
    """One round that replaces the token of `old` by that of `new`, and its undo.

    With `exactly`, it may shorten the TTL; that is for a client that takes the lease, which does
    not know who else tries: the round is not lost before that is known.
    """

    def __init__(
        self, client: Client, old: Lease, new: RedlockLease, *, exactly: bool = False
    ) -> None:
        deployment = client.deployment
        self._deployment = deployment
        self._old = old
        self._swap = Swap(deployment, new.resources, new.value, old.token, new.ttl, exactly=exactly)
        self.tally = Tally(deployment.masters, deployment.skew, rivals=exactly)
        self.round = Round((self._swap,) * deployment.masters, self.tally)

    @property
    def won(self) -> bool:
        """True if a majority has replaced the token."""
        return self.tally.verdict is WON

    @property
    def denied(self) -> bool:
        """True if so many masters do not have the old token that the others are no quorum."""
        return not self.won and self.tally.denied

    @property
    def is_refused(self) -> bool:
        """True if one other client is proved to have a majority, or the lock to have ended."""
        tally = self.tally
        gone = sum(not vote.used for vote in tally.refusals)
        return not self.won and (tally.rival_won or not tally.majority(tally.masters - gone))

    @property
    def is_split(self) -> bool:
        """True if several clients try at once, and none of them is known to have a majority."""
        return not (self.won or self.tally.unreachable or self.is_refused)

    def undo(self) -> Protocol[None]:
        """Restore the old token wherever it was replaced, or may be."""
        try:
            yield self._restore()
        except GeneratorExit:
            raise
        except BaseException:
            # The interrupt may have struck before a byte was sent; to restore twice is harmless.
            yield self._restore()
            raise

    def _restore(self) -> Round:
        swap = self._swap
        return self._send(Restore(swap.deployment, swap.resources, swap.value, old=swap.old))

    def release(self) -> Round:
        """Return the round that releases what was replaced."""
        new, limit = self._swap, self._old.limit
        return self._send(Release(new.deployment, new.resources, new.value, limit=limit))

    @property
    def left_before(self) -> float:
        """The seconds that the lock had left where its token was replaced."""
        return max(vote.ttl or 0 for vote in self.tally.counted()) / 1000

    def left(self, lease: RedlockLease, *, bury: bool) -> Round | None:
        """Return the round that releases what is left of a lease whose token was replaced.

        That is the lease itself where its token may not have been replaced, and its waiter, which
        may be in the queue of any master. With `bury`, a tombstone is written.
        """
        votes = enumerate(self.tally.votes)
        granted = {master for master, vote in votes if vote and vote.ballot is Ballot.GRANTED}
        reached = lease.reached | lease.tally.forgot
        rest = reached if lease.waiter else reached - granted
        if not rest:
            return None
        release = Release(
            self._deployment, lease.resources, lease.value,
            bury=bury, waiter=lease.waiter, limit=lease.limit,
        )  # fmt: skip
        return self._send(release, rest)

    def _send(self, command: Release, masters: frozenset[int] | None = None) -> Round:
        many, reached = self.tally.masters, self.tally.reached if masters is None else masters
        return Round(to_masters(command, reached, many), Tally(many), awaited=False)

    def refusal(self, *, late: bool) -> RedlockError:
        """Return why the lease was not taken."""
        tally, resources = self.tally, self._old.names
        if late or tally.unreachable:
            return unreachable(self._deployment, resources, self.tally, late=late)
        if self.is_split:
            names = ", ".join(resources)
            why = "other clients try to take it with the same ticket at this moment: try again"
            return QuorumUnreachable(f"{names}: {why}", resource=names)
        takers = [vote.rival for vote in tally.refusals if vote.used]
        is_used = tally.majority(max(map(takers.count, takers), default=0))
        return refused_ticket(self._old, is_used=is_used)


def lost_before(lease: Lease) -> LockLost:
    """Return the error of a giver that has lost its lock."""
    names = ", ".join(lease.names)
    return LockLost(f"{names}: the lock was lost before it was handed on", resource=names)


def refused_ticket(handed: Lease, *, is_used: bool) -> LockLost | TicketUsed:
    """Return the error of a taker that did not find the lock: its ticket is used, or too late."""
    names = ", ".join(handed.names)
    if is_used:
        why = "this ticket was used before, or an operator has released its lock"
        return TicketUsed(f"{names}: {why}", resource=names)
    return LockLost(f"{names}: this ticket is too late, its lock has ended", resource=names)
