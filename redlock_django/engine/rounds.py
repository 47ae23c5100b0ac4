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
from typing import NamedTuple, TypeVar

from redlock_django.engine.commands import Acquire, Command, Confirm, Extend, Heal, Release, Terms
from redlock_django.engine.errors import (
    NotAcquired,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.engine.fencing import highest, settled
from redlock_django.engine.quorum import NOT_ASKED, Ballot, Tally, Verdict
from redlock_django.engine.validity import Lease, LeaseState, valid_until

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
    """Sleep that many seconds."""

    seconds: float


Step = Round | Pause
Result = TypeVar("Result")
Protocol = Generator[Step, float, Result]


def ended(protocol: Protocol[Result]) -> bool:
    """Whether a protocol has said its last word, so that nothing may be thrown into it."""
    return inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED


def acquire(
    terms: Terms,
    resources: tuple[str, ...],
    ttl: float,
    holder: str,
    *,
    now: float,
    wait: float,
    tokens: Iterator[str],
    proposals: Iterator[int],
    delays: Iterator[float],
) -> Protocol[Lease]:
    """Take a lock on all `resources` or on none.

    `ttl` and `wait` in seconds; `holder` is what is shown of us, without the token.
    `tokens` are fresh for every round: with one token for all of them, a late undo of the
    first deletes the lock that the second has won. `proposals` are the wall clock in µs.

    Raises ResourceLocked or QuorumUnreachable once `wait` is over.
    """
    give_up = now + wait
    splits = 0
    while True:
        started = now
        value = f"{next(tokens)} {holder}"
        tally = Tally(terms.masters, skew=terms.skew, rivals=True)
        ask = Acquire(
            terms=terms, resources=resources, value=value, ttl=ttl, proposal=next(proposals)
        )
        try:
            now = yield Round((ask,) * terms.masters, tally)
            late, last = False, tally
            if tally.verdict is Verdict.WON:
                fences = highest(tally, len(resources))
                agreed = settled(tally, fences)
                if not agreed:
                    confirm = Confirm(terms=terms, resources=resources, value=value, fences=fences)
                    last = Tally(terms.masters, skew=terms.skew)
                    now = yield Round((confirm,) * terms.masters, last)
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
                        reached=_reached(tally),
                        tally=tally,
                    )
            now = yield _undo(ask, tally)
        except GeneratorExit:
            raise
        except BaseException:
            # Said again where it struck the undo itself: perhaps before a byte had left.
            yield _undo(ask, tally)
            raise

        # Nobody is proved to hold it: a split vote, or a race with a release. Asking again
        # at once is right even for who does not want to wait, else all may lose.
        split = not (late or last.unreachable or last.rival_won)
        splits += split
        delay = next(delays)
        if split and splits < SPLIT_ROUNDS:
            now = yield Pause(delay)
            continue
        if now >= give_up:
            raise _refusal(terms, resources, last, late)
        left = _free_in(last)
        if left is not None:
            delay = min(delay, left + 0.001)
        now = yield Pause(min(delay, give_up - now))


def extend(
    terms: Terms, lease: Lease, ttl: float, *, now: float
) -> Protocol[tuple[LeaseState, Lease]]:
    """Let a lease live `ttl` seconds more; return what was found out, and the lease now valid.

    Only masters where the lock is still ours count, and only before the old deadline. A
    master that said at the last extension that it had forgotten the lock is given it
    again in the same breath, and counts from the next one.
    """
    if now >= lease.until:
        return LeaseState.LOST, lease
    started = now
    ask = Extend(terms=terms, resources=lease.resources, value=lease.value, ttl=ttl)
    heal = Heal(
        terms=terms, resources=lease.resources, value=lease.value, ttl=ttl, fences=lease.fences
    )
    forgot = _forgot(lease)
    tally = Tally(terms.masters, skew=terms.skew)
    commands = tuple(heal if master in forgot else ask for master in range(terms.masters))
    now = yield Round(commands, tally)
    lease = replace(lease, tally=tally, reached=lease.reached | forgot)
    if now >= lease.until:
        return LeaseState.LOST, lease
    until = valid_until(ttl, started)
    if tally.verdict is Verdict.WON and now < until:
        return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)
    return (LeaseState.LOST if tally.denied else LeaseState.UNKNOWN), lease


def release(
    terms: Terms, lease: Lease, *, awaited: bool = True, bury: bool = False
) -> Protocol[bool | None]:
    """Free a lease wherever it may stand.

    Returns True if a majority freed it just now, False if it was lost (so many say that it
    was not ours any more), None where too few answered to know. With `bury`, its token
    cannot come back either: for releases that do not travel behind their acquire.
    """
    ask = Release(terms=terms, resources=lease.resources, value=lease.value, bury=bury)
    # An extension under way may be healing the masters that had forgotten the lock.
    reached = lease.reached | _forgot(lease)
    tally = Tally(terms.masters)
    commands = tuple(ask if master in reached else None for master in range(terms.masters))
    try:
        yield Round(commands, tally, awaited)
    except GeneratorExit:
        raise
    except BaseException:
        # It may have struck before a byte had left; to free twice does no harm.
        yield Round(commands, Tally(terms.masters), awaited=False)
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


def _forgot(lease: Lease) -> frozenset[int]:
    """The masters that said in the lease's last round that they do not have it."""
    return frozenset(
        master for master, vote in enumerate(lease.tally.votes) if vote is not None and vote.absent
    )


def _undo(ask: Acquire, tally: Tally) -> Round:
    reached = _reached(tally)
    undo = Release(terms=ask.terms, resources=ask.resources, value=ask.value)
    commands = tuple(undo if m in reached else None for m in range(tally.masters))
    return Round(commands, Tally(tally.masters), awaited=False)


def _free_in(tally: Tally) -> float | None:
    """Seconds until enough refusing locks have expired for a quorum; None: nobody knows."""
    missing = tally.need - tally.count(Ballot.GRANTED)
    left = sorted(
        vote.ttl
        for vote in tally.votes
        if vote is not None and vote.ttl is not None and vote.ttl >= 0
    )
    if missing < 1:
        return 0.0
    return left[missing - 1] / 1000 if len(left) >= missing else None


def _refusal(terms: Terms, resources: tuple[str, ...], tally: Tally, late: bool) -> NotAcquired:
    names = ", ".join(resources)
    votes = dict(zip(terms.names, tally.reasons(), strict=True))
    if late or tally.unreachable:
        unasked = sum(vote is NOT_ASKED for vote in tally.votes)
        failures = tally.masters - len(tally.agreeing) - tally.outstanding - unasked
        why = "the masters answered too slowly for the lock's TTL"
        if not late:
            why = (
                f"{failures} of {tally.masters} masters cannot be counted, and "
                f"{tally.need} must agree"
            )
        said = "; ".join(f"{name}: {reason}" for name, reason in votes.items())
        return QuorumUnreachable(f"{names}: {why} ({said})", resource=names, tally=votes)
    return ResourceLocked(
        f"{names}: held by somebody else",
        resource=names,
        tally=votes,
        retry_after=_free_in(tally),
    )
