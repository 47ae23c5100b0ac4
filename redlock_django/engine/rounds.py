"""The rounds of Redlock: acquire, extend and release, written once for every driver.

Each is a generator, whose steps `protocol_steps` explains.
"""

from __future__ import annotations

from dataclasses import replace

from redlock_django.engine.attempt import Attempt, to_masters
from redlock_django.engine.commands import Command, Extend, Heal, Release
from redlock_django.engine.deployment import Deployment
from redlock_django.engine.fast_path import FastTally
from redlock_django.engine.protocol_steps import Pause, Protocol, Round
from redlock_django.engine.quorum import WON
from redlock_django.engine.refusal import Waiter, refusal
from redlock_django.engine.validity import LeaseState, RedlockLease, valid_until, with_drift
from redlock_django.engine.waiting import Client, Wait

LAST_MOMENT = 0.1  # seconds at the end of a wait in which a waiter does not begin to ask


def acquire(
    client: Client,
    resources: tuple[str, ...],
    ttl: float,
    holder: str,
    *,
    now: float,
    wait: float,
    waiter: Waiter | None = None,
    home: object = None,
) -> Protocol[RedlockLease]:
    """Acquire the lock of all `resources` or of none.

    `ttl` and `wait` are in seconds; `holder` describes the client without the token. The last
    attempt begins once `wait` is over or, if votes are split, at most the client's `overrun` after
    that. `home` is the lease's.

    A waiter joins a queue on every master that refuses it. Its ticket is its first proposal; if its
    clock is wrong, the ticket is what a majority's clocks showed at that time. Masters call it by
    its name when its turn comes. Waiters are served in order: a free lock is granted to no client
    while an earlier waiter that can be called is in the queue, and so never to a client that does
    not wait. A waiter that was called has 0.1 s to ask before its turn is over. Several resources
    are waited for one at a time, in the queue of the first that is refused, and none is held
    meanwhile. All clients should name them in the same order: two clients that do not would each
    be called for a lock that is reserved for the other.

    A waiter that is `behind` others of its process for the same resources pauses first, until the
    driver ends the pause or `wait` is over. Its ticket is from before. If `wait` is over, or will
    be in a moment, it is refused as the last of those others was: many that give up at the same
    moment would else keep the masters from answering the next waiter. If that is not known, it asks
    once, as a client that does not wait, and joins no queue. It leaves the others once the lock is
    won.

    Raises ResourceLocked or QuorumUnreachable once `wait` is over.
    """
    name, crowd = ("", None) if waiter is None else (waiter.name, waiter.crowd_refusal)
    waiting = Wait(client, resources, ttl, holder, name, now, wait)
    attempt: Attempt | None = None
    resting = False
    try:
        if waiter is not None and waiter.behind:
            now = yield waiting.pause_behind()
            if crowd is not None and crowd.is_refused:
                if 0 < (left := waiting.give_up - now) < LAST_MOMENT:
                    now = yield Pause(left)
                if now >= waiting.give_up and (known := crowd.error(resources)):
                    known.waited = known.took = now - waiting.asked
                    raise known
            if now >= waiting.give_up:
                name = waiting.waiter = ""  # for its only attempt, it need not join a queue
        while True:
            attempt = waiting.begin(now)
            resting, waiting.begun = False, None
            now = yield attempt
            if not attempt.wins_plainly(now):
                now = yield from attempt.judge(now)
            if name:
                waiting.queued |= attempt.tally.asked
            if crowd is not None:
                crowd.note(attempt)
            if attempt.won:
                if waiter is not None:
                    waiter.leave()  # here, where an interrupt is answered with an undo
                return RedlockLease(
                    resources, attempt.ask.token, holder, ttl, attempt.started, attempt.until,
                    attempt.fences, attempt.started - waiting.asked, waiting.lost + 1, home,
                    waiting.queued or attempt.tally.reached, attempt.tally, name,
                )  # fmt: skip
            split = attempt.split
            again = waiting.goes_on(now, split=split)
            queued = frozenset() if again else waiting.queued
            now = yield from attempt.undo(now, queued, leave=not again)
            if not again:
                break
            resting = not name  # then no master has a lock or a ticket of this client
            now = yield waiting.pause(attempt, now, split=split)
    except GeneratorExit:
        raise
    except BaseException:
        # Sent again if the interrupt struck during the undo itself, perhaps before a byte was sent.
        attempt = waiting.begun or attempt
        if attempt is not None and not resting:
            if name:
                waiting.queued |= attempt.tally.asked
            yield from attempt.undo(now, waiting.queued, leave=True)
        raise
    error = refusal(client.deployment, resources, attempt.last, attempt.late)
    error.waited, error.took = attempt.started - waiting.asked, now - waiting.asked
    error.attempts = waiting.lost
    raise error


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
    ask = Extend(deployment, lease.resources, value, ttl)
    heal = Heal(deployment, lease.resources, value, ttl, lease.fences)
    forgot = lease.tally.forgot
    tally = FastTally(deployment.masters, deployment.skew)
    commands = tuple(heal if master in forgot else ask for master in range(deployment.masters))
    now = yield Round(commands, tally)
    lease = replace(lease, tally=tally, reached=lease.reached | forgot)
    if now >= lease.until:
        return LeaseState.LOST, lease
    until = valid_until(ttl, started)
    if tally.verdict is WON and now < until:
        return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)
    return (LeaseState.LOST if tally.denied else LeaseState.UNKNOWN), lease


def merged(held: RedlockLease, extended: RedlockLease) -> RedlockLease:
    """Return the lease that is valid once an extension of `held`, or of an earlier one, has ended.

    Extensions may overlap. A release must reach every master that any of them may have healed.
    """
    later = extended if extended.until >= held.until else held
    healed = held.tally.forgot | extended.tally.forgot
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
    left = with_drift(held_for) if held_for > 0 else 0.0
    ask = Release(deployment, lease.resources, lease.value, bury, left, lease.waiter)
    frees = () if left else lease.resources
    masters = deployment.masters
    commands: tuple[Command | None, ...] = (ask,) * masters
    if len(lease.reached) < masters:
        # An extension under way may be healing the masters that had forgotten the lock.
        commands = to_masters(ask, lease.reached | lease.tally.forgot, masters)
    tally = FastTally(masters)
    try:
        yield Round(commands, tally, 0.0, awaited, frees)
    except GeneratorExit:
        raise
    except BaseException:
        # The interrupt may have struck before a byte was sent; to release twice is harmless.
        yield Round(commands, FastTally(masters), awaited=False)
        raise
    if tally.verdict is WON:
        return True
    return False if tally.denied else None
