"""The rounds of Redlock: acquire, extend, release, written once for every driver.

Each is a generator. It yields a `Round` (say this to the masters, settle this tally) or
a `Pause`, and is sent the clock when that is done. A driver therefore knows three things:
to carry a round until its tally is decided, to sleep, and to throw what interrupts it
(a cancellation, Ctrl-C) *into* the generator, which undoes what it began and raises it
again. `GeneratorExit` alone means the driver is gone: then nothing can be undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from redlock_django.engine.commands import (
    Acquire,
    Command,
    Confirm,
    Deployment,
    Extend,
    Heal,
    Release,
)
from redlock_django.engine.fencing import highest, settled
from redlock_django.engine.quorum import Ballot, Tally, Verdict
from redlock_django.engine.refusal import refusal
from redlock_django.engine.validity import Lease, LeaseState, valid_until
from redlock_django.engine.waiting import behind, retry_delay

SPLIT_ROUNDS = 8  # rounds after a split vote before it is called locked


class Round(NamedTuple):
    """Say `commands[i]` to master i (None: nothing), and settle `tally`.

    A round that is not `awaited` is put on its way and left alone: its answers are
    nobody's business.
    """

    commands: tuple[Command | None, ...]
    tally: Tally
    awaited: bool = True


class Pause(NamedTuple):
    """Sleep that many seconds, or until the waiter in whose protocol this is has been called.

    It has been called once a majority of masters did so since its last round began.
    """

    seconds: float


Step = Round | Pause
Result = TypeVar("Result")
Protocol = Generator[Step, float, Result]


def ended(protocol: Generator[object, Any, object]) -> bool:
    """Whether a protocol has said its last word, so that nothing may be thrown into it."""
    return inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED


def acquire(
    deployment: Deployment,
    resources: tuple[str, ...],
    ttl: float,
    holder: str,
    *,
    now: float,
    wait: float,
    tokens: Iterator[str],
    proposals: Iterator[int],
    delays: Iterator[float],
    waiter: str = "",
    home: object = None,
) -> Protocol[Lease]:
    """Take a lock on all `resources` or on none.

    `ttl` and `wait` in seconds; `holder` is what is shown of us, without the token.
    `tokens` are fresh for every round: with one token for all of them, a late undo of the
    first deletes the lock that the second has won. `proposals` are the wall clock in µs.
    `home` is the lease's.

    Who waits stands in a queue on every master that refuses it, by its first proposal (where
    its clock is wrong, by what theirs showed then), under the name of `waiter`, by which it is
    called when its turn comes. First come, first served: a free lock is granted to nobody while
    somebody waits who came before and can be called, and so never to one who does not wait. A
    waiter that was called has 0.1 s to ask before its turn is over. Several resources are waited
    for one at a time, in the queue of the first that is refused; none is kept meanwhile. Let
    everybody name them in the same order: of two that do not, each would be called for what the
    other has been promised.

    Raises ResourceLocked or QuorumUnreachable once `wait` is over.
    """
    asked, give_up = now, now + wait
    splits = ticket = wrong = 0
    queued: frozenset[int] = frozenset()  # where we may stand in a queue
    while True:
        started = now
        value = f"{next(tokens)} {holder}"
        tally = Tally(deployment.masters, skew=deployment.skew, rivals=True)
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
                agreed = settled(tally, fences)
                if not agreed:
                    confirm = Confirm(
                        deployment=deployment, resources=resources, value=value, fences=fences
                    )
                    last = Tally(deployment.masters, skew=deployment.skew)
                    now = yield Round((confirm,) * deployment.masters, last)
                    agreed = last.verdict is Verdict.WON
                until = valid_until(ttl, started)
                late = now >= until
                if agreed and not late:
                    return Lease(
                        resources=resources,
                        value=value,
                        ttl=ttl,
                        started=started,
                        until=until,
                        fences=fences,
                        reached=_reached(tally) | queued,
                        tally=tally,
                        waiter=waiter,
                        waited=started - asked,
                        home=home,
                    )
            # Nobody is proved to hold it: a split vote, or a race with a release. Asking again
            # at once is right even for who does not want to wait, else all may lose.
            split = not (late or last.unreachable or last.rival_won)
            splits += split
            again = now < give_up or (split and splits < SPLIT_ROUNDS)
            now = yield _undo(ask, tally, frozenset() if again else queued, leave=not again)
            if again:
                if off := behind(tally, proposal, now - started):
                    wrong += off
                    ticket = proposal + off - round((started - asked) * 1_000_000)
                delay = next(delays)
                if not split:
                    queueing = bool(waiter) and not (late or last.unreachable)
                    delay = retry_delay(last, delay, queueing=queueing)
                if now < give_up:
                    delay = min(delay, give_up - now)
                resting = not waiter  # then nothing of ours is anywhere
                now = yield Pause(delay)
                continue
        except GeneratorExit:
            raise
        except BaseException:
            # Said again where it struck the undo itself: perhaps before a byte had left.
            if waiter:
                queued |= _asked(tally)
            if not resting:
                yield _undo(ask, tally, queued, leave=True)
            raise
        raise refusal(deployment, resources, last, late, started - asked)


def extend(
    deployment: Deployment, lease: Lease, ttl: float, *, now: float
) -> Protocol[tuple[LeaseState, Lease]]:
    """Let a lease live `ttl` seconds more; return what was found out, and the lease now valid.

    Only masters where the lock is still ours count, and only before the old deadline. A
    master that said at the last extension that it had forgotten the lock is given it
    again in the same breath, and counts from the next one.
    """
    if now >= lease.until:
        return LeaseState.LOST, lease
    started = now
    ask = Extend(deployment=deployment, resources=lease.resources, value=lease.value, ttl=ttl)
    heal = Heal(
        deployment=deployment,
        resources=lease.resources,
        value=lease.value,
        ttl=ttl,
        fences=lease.fences,
    )
    forgot = _forgot(lease)
    tally = Tally(deployment.masters, skew=deployment.skew)
    commands = tuple(heal if master in forgot else ask for master in range(deployment.masters))
    now = yield Round(commands, tally)
    lease = replace(lease, tally=tally, reached=lease.reached | forgot)
    if now >= lease.until:
        return LeaseState.LOST, lease
    until = valid_until(ttl, started)
    if tally.verdict is Verdict.WON and now < until:
        return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)
    return (LeaseState.LOST if tally.denied else LeaseState.UNKNOWN), lease


def release(
    deployment: Deployment, lease: Lease, *, awaited: bool = True, bury: bool = False
) -> Protocol[bool | None]:
    """Free a lease wherever it may stand.

    Returns True if a majority freed it just now, False if it was lost (so many say that it
    was not ours any more), None where too few answered to know. With `bury`, its token
    cannot come back either: for releases that do not travel behind their acquire.
    """
    ask = Release(
        deployment=deployment,
        resources=lease.resources,
        value=lease.value,
        bury=bury,
        waiter=lease.waiter,
    )
    # An extension under way may be healing the masters that had forgotten the lock.
    reached = lease.reached | _forgot(lease)
    tally = Tally(deployment.masters)
    commands = tuple(ask if master in reached else None for master in range(deployment.masters))
    try:
        yield Round(commands, tally, awaited)
    except GeneratorExit:
        raise
    except BaseException:
        # It may have struck before a byte had left; to free twice does no harm.
        yield Round(commands, Tally(deployment.masters), awaited=False)
        raise
    if tally.verdict is Verdict.WON:
        return True
    return False if tally.denied else None


def _reached(tally: Tally) -> frozenset[int]:
    """The masters that may carry the lock: all but those never asked or sure to have refused."""
    return frozenset(
        master
        for master, vote in enumerate(tally.votes)
        if vote is None or (vote.sent and vote.ballot is not Ballot.REFUSED)
    )


def _asked(tally: Tally) -> frozenset[int]:
    """The masters that may have heard of us, whatever they said."""
    return frozenset(master for master, vote in enumerate(tally.votes) if vote is None or vote.sent)


def _forgot(lease: Lease) -> frozenset[int]:
    """The masters that said in the lease's last round that they do not have it."""
    return frozenset(
        master for master, vote in enumerate(lease.tally.votes) if vote is not None and vote.absent
    )


def _undo(ask: Acquire, tally: Tally, queued: frozenset[int], *, leave: bool) -> Round:
    reached = _reached(tally) | queued
    undo = Release(
        deployment=ask.deployment,
        resources=ask.resources,
        value=ask.value,
        waiter=ask.waiter if leave else "",
        calls=leave,
    )
    commands = tuple(undo if m in reached else None for m in range(tally.masters))
    return Round(commands, Tally(tally.masters), awaited=False)
