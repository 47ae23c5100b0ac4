"""The rounds of Redlock: acquire, extend and release, written once for every driver.

Each is a generator. It yields a `Round` (send these commands, count the answers in this tally) or a
`Pause`, and is sent the clock when that is done. A driver does three things: it carries a round
until its tally is decided, it sleeps, and it throws an interrupt (a cancellation, Ctrl-C) *into*
the generator, which undoes what it began and raises the interrupt again. `GeneratorExit` alone
means that the driver is gone: then nothing can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from redlock_django.engine.commands import Acquire, Command, Confirm, Extend, Heal, Release
from redlock_django.engine.deployment import Deployment
from redlock_django.engine.fast_path import new_tally
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.quorum import Ballot, Tally, Verdict
from redlock_django.engine.refusal import refusal
from redlock_django.engine.validity import LeaseState, RedlockLease, valid_until, with_drift
from redlock_django.engine.waiting import clock_lag, retry_delays

SPLIT_ROUNDS = 8  # split votes after which a client that does not wait gives up


class Round(NamedTuple):
    """Send `commands[i]` to master i (None: nothing), and count the answers in `tally`.

    A round that is not `awaited` is sent without waiting for its answers.
    """

    commands: tuple[Command | None, ...]
    tally: Tally
    awaited: bool = True


class Pause(NamedTuple):
    """Sleep that many seconds, or until the waiter of this protocol is called.

    A waiter is called once a majority of masters has called it since its last round began. While
    it may miss a call, because a link was lost, is new, or cannot bring calls, it sleeps `unheard`
    seconds at most.
    """

    seconds: float
    unheard: float = math.inf


Step = Round | Pause
Result = TypeVar("Result")
Protocol = Generator[Step, float, Result]


def acquire(
    deployment: Deployment,
    resources: tuple[str, ...],
    ttl: float,
    holder: str,
    *,
    now: float,
    wait: float,
    overrun: float,
    tokens: Iterator[str],
    proposals: Iterator[int],
    delays: Iterator[float],
    waiter: str = "",
    home: object = None,
) -> Protocol[RedlockLease]:
    """Acquire the lock of all `resources` or of none.

    `ttl`, `wait` and `overrun` are in seconds; `holder` describes this client without the token.
    The last attempt begins once `wait` is over or, if votes are split, at most `overrun` after
    that. `tokens` yields a new token for every round: with one token for all rounds, a late undo of
    the first round would delete the lock that the second round won. `proposals` yields the wall
    clock in µs. `home` is the lease's.

    A waiter joins a queue on every master that refuses it. Its ticket is its first proposal; if its
    clock is wrong, the ticket is what a majority's clocks showed at that time. `waiter` is the name
    by which masters call it when its turn comes. Waiters are served in order: a free lock is
    granted to no client while an earlier waiter that can be called is in the queue, and so never to
    a client that does not wait. A waiter that was called has 0.1 s to ask before its turn is over.
    Several resources are waited for one at a time, in the queue of the first that is refused, and
    none is held meanwhile. All clients should name them in the same order: two clients that do not
    would each be called for a lock that is reserved for the other.

    Raises ResourceLocked or QuorumUnreachable once `wait` is over.
    """
    asked, give_up, limit = now, now + wait, now + wait + overrun
    splits = ticket = wrong = 0
    queued: frozenset[int] = frozenset()  # the masters that may have this waiter in a queue
    while True:
        started = now
        token = next(tokens)
        value = f"{token} {holder}"
        tally = new_tally(deployment.masters, skew=deployment.skew, rivals=True)
        proposal = next(proposals) + wrong
        ticket = ticket or proposal
        ask = Acquire(
            deployment=deployment, resources=resources, value=value, ttl=ttl,
            proposal=proposal, waiter=waiter, ticket=ticket,
        )  # fmt: skip
        resting = False
        try:
            now = yield Round((ask,) * deployment.masters, tally)
            late, last = False, tally
            if waiter:
                queued |= _asked(tally)
            if tally.verdict is Verdict.WON:
                fences = highest(tally, len(resources))
                agreed = stored_by_majority(tally, fences)
                if not agreed:
                    confirm = Confirm(
                        deployment=deployment, resources=resources, value=value, fences=fences
                    )
                    last = new_tally(deployment.masters, skew=deployment.skew)
                    now = yield Round((confirm,) * deployment.masters, last)
                    agreed = last.verdict is Verdict.WON
                until = valid_until(ttl, started)
                late = now >= until
                if agreed and not late:
                    return RedlockLease(
                        resources=resources, token=token, holder=holder, ttl=ttl, started=started,
                        until=until, fences=fences, reached=_reached(tally) | queued, tally=tally,
                        waiter=waiter, waited=started - asked, home=home,
                    )  # fmt: skip
            # No client is proved to hold the lock: this is a split vote, or a race with a release.
            # Asking again at once is right even for a client that does not wait; otherwise all of
            # them may lose. The same if connections had been closed while idle, as routers do: the
            # next attempt has new ones.
            split = last.only_stale or not (late or last.unreachable or last.rival_won)
            splits += split
            again = now < give_up or (split and splits < SPLIT_ROUNDS and now < limit)
            now = yield _undo(ask, tally, frozenset() if again else queued, leave=not again)
            if again:
                if lag := clock_lag(tally, proposal, now - started):
                    wrong += lag
                    ticket = proposal + lag - round((started - asked) * 1_000_000)
                delay = unheard = next(delays)
                if not split:
                    queueing = bool(waiter) and not (late or last.unreachable)
                    delay, unheard = retry_delays(last, delay, queueing=queueing)
                end = give_up if now < give_up else limit
                delay = max(0.0, min(delay, end - now))
                resting = not waiter  # then no master has a lock or a ticket of this client
                now = yield Pause(delay, unheard)
                continue
        except GeneratorExit:
            raise
        except BaseException:
            # Sent again if the interrupt struck during the undo itself, perhaps before a byte was
            # sent.
            if waiter:
                queued |= _asked(tally)
            if not resting:
                yield _undo(ask, tally, queued, leave=True)
            raise
        raise refusal(deployment, resources, last, late, started - asked)


def extend(
    deployment: Deployment, lease: RedlockLease, ttl: float, *, now: float
) -> Protocol[tuple[LeaseState, RedlockLease]]:
    """Extend a lease by `ttl` seconds from now; return the result and the lease that is now valid.

    Only masters that still have the lock count, and only before the old deadline. A master that
    answered the last extension with "forgot the lock" gets the lock again in the same round, and
    counts from the next one.
    """
    if now >= lease.until:
        return LeaseState.LOST, lease
    started = now
    value = lease.value
    ask = Extend(deployment=deployment, resources=lease.resources, value=value, ttl=ttl)
    heal = Heal(
        deployment=deployment, resources=lease.resources, value=value,
        ttl=ttl, fences=lease.fences,
    )  # fmt: skip
    forgot = _forgot(lease)
    tally = new_tally(deployment.masters, skew=deployment.skew)
    commands = tuple(heal if master in forgot else ask for master in range(deployment.masters))
    now = yield Round(commands, tally)
    lease = replace(lease, tally=tally, reached=lease.reached | forgot)
    if now >= lease.until:
        return LeaseState.LOST, lease
    until = valid_until(ttl, started)
    if tally.verdict is Verdict.WON and now < until:
        return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)
    return (LeaseState.LOST if tally.denied else LeaseState.UNKNOWN), lease


def merged(held: RedlockLease, extended: RedlockLease) -> RedlockLease:
    """Return the lease that is valid once an extension of `held`, or of an earlier one, has ended.

    Extensions may overlap. A release must reach every master that any of them may have healed.
    """
    later = extended if extended.until >= held.until else held
    healed = _forgot(held) | _forgot(extended)
    return replace(later, reached=held.reached | extended.reached | healed)


def release(
    deployment: Deployment,
    lease: RedlockLease,
    *,
    awaited: bool = True,
    bury: bool = False,
    held_for: float = 0.0,
) -> Protocol[bool | None]:
    """Release a lease on every master that may have it, or leave it there for `held_for` seconds.

    Returns True if a majority did that just now, False if it was lost (so many masters answered
    that the lock does not have this token any more), None if too few masters answered to know. With
    `bury`, the token cannot be set again either: for a release that is sent on another connection
    than its acquire, and so may arrive first.
    """
    ask = Release(
        deployment=deployment, resources=lease.resources, value=lease.value,
        bury=bury, waiter=lease.waiter,
    )  # fmt: skip
    if held_for > 0:
        ask = ask.shortened(with_drift(held_for))
    # An extension under way may be healing the masters that had forgotten the lock.
    reached = lease.reached | _forgot(lease)
    tally = new_tally(deployment.masters)
    commands = _to(ask, reached, deployment.masters)
    try:
        yield Round(commands, tally, awaited)
    except GeneratorExit:
        raise
    except BaseException:
        # The interrupt may have struck before a byte was sent; to release twice is harmless.
        yield Round(commands, new_tally(deployment.masters), awaited=False)
        raise
    if tally.verdict is Verdict.WON:
        return True
    return False if tally.denied else None


def _reached(tally: Tally) -> frozenset[int]:
    """Return the masters that may have the lock: not those never asked or sure to have refused."""
    return tally.plain or frozenset(
        master
        for master, vote in enumerate(tally.votes)
        if vote is None or (vote.sent and vote.ballot is not Ballot.REFUSED)
    )


def _asked(tally: Tally) -> frozenset[int]:
    """Return the masters that may have received a command, whatever they answered."""
    return tally.plain or frozenset(
        m for m, vote in enumerate(tally.votes) if not vote or vote.sent
    )


def _forgot(lease: RedlockLease) -> frozenset[int]:
    """Return the masters that answered in the lease's last round that they do not have the lock."""
    if lease.tally.plain:
        return frozenset()
    return frozenset(
        master for master, vote in enumerate(lease.tally.votes) if vote is not None and vote.absent
    )


def _undo(ask: Acquire, tally: Tally, queued: frozenset[int], *, leave: bool) -> Round:
    reached = _reached(tally) | queued
    undo = Release(
        deployment=ask.deployment, resources=ask.resources, value=ask.value,
        waiter=ask.waiter if leave else "", calls=leave,
    )  # fmt: skip
    return Round(_to(undo, reached, tally.masters), new_tally(tally.masters), awaited=False)


def _to(command: Command, reached: frozenset[int], masters: int) -> tuple[Command | None, ...]:
    if len(reached) == masters:
        return (command,) * masters
    return tuple(command if m in reached else None for m in range(masters))
