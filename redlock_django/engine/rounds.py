"""The rounds of Redlock: acquire, extend and release, written once for every driver.

Each is a generator, whose steps `steps` explains.
"""

from __future__ import annotations

from dataclasses import replace

from redlock_django.engine.attempt import Client, Wait, WaitingCaller, to_masters
from redlock_django.engine.protocol.commands import Extend, Heal, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import WON, Tally
from redlock_django.engine.slot_choice import SlotChoice
from redlock_django.engine.steps import Protocol, Round
from redlock_django.engine.validity import (
    Lease,
    LeaseState,
    RedlockLease,
    valid_until,
    with_drift,
)


def acquire(
    client: Client,
    resources: tuple[str, ...],
    ttl: float,
    holder: str,
    *,
    now: float,
    wait: float,
    waiter: WaitingCaller | None = None,
    home: object = None,
    limit: int = 1,
    expected: Lease | None = None,
) -> Protocol[RedlockLease]:
    """Acquire the lock of all `resources` or of none, by the steps of Redlock.

    1. Note the time, and take a token that no other attempt has: `Wait.next_attempt`.
    2. Ask all masters at once to set the lock if it is absent: `yield attempt`.
    3. Count the votes. The lock is won if a majority has granted it, and some of its TTL is left:
       `Attempt.judge`.
    4. It is valid for its TTL less the time since step 1 and the drift of clocks: `Wait.lease`.
    5. If it was not won, release it on every master that may have granted it (`Wait.undo`), and
       pause for a random time before the next attempt (`Wait.pause`).

    `ttl` and `wait` are in seconds; `holder` describes the client without the token. The last
    attempt begins once `wait` is over or, if votes are split, at most the client's `overrun` after
    that. `waiter` joins the masters' queues, see `Wait`. `home` is the lease's.
    With a `limit`, `resources` has one name, and each attempt asks for one slot of it.

    With an `expected` lease, the lock is set if it has the token of that lease, instead of if it is
    absent: a lock is handed on, or taken with its ticket. Its fences stay as they are, and an undo
    restores its token and the time that it had left.

    Raises ResourceLocked or QuorumUnreachable once `wait` is over; for an `expected` lease instead
    of ResourceLocked TicketUsed, or LockLost if the lock has ended.

    Source: the page "Distributed Locks with Redis" of the Redis documentation.
    """
    slots = (
        SlotChoice(resources[0], limit, client.released) if limit > 1 and expected is None else None
    )
    waiting = Wait(client, resources, ttl, holder, waiter, now, now + wait, slots, expected)
    try:
        while True:
            attempt = waiting.next_attempt(now)
            now = yield attempt
            if confirm := attempt.judge(now):
                now = yield confirm
                attempt.end(now)
            waiting.note(attempt)
            if attempt.won:
                return waiting.lease(attempt, home, now)
            again = waiting.goes_on(attempt, now)
            if undo := waiting.undo(attempt, again=again):
                now = yield undo
            if not again:
                break
            now = yield waiting.pause(attempt, now)
            if undo := waiting.undo_silent():
                now = yield undo
    except GeneratorExit:
        raise
    except BaseException:
        if undo := waiting.undo_interrupted():
            try:
                yield undo
            except GeneratorExit:
                raise
            except BaseException:
                # It may have struck before a byte was sent; to undo twice is harmless.
                yield replace(undo, tally=Tally(undo.tally.masters))
                raise
        raise
    raise waiting.refusal(now)


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
    tally = Tally(deployment.masters, deployment.skew)
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
    ask = Release(
        deployment, lease.resources, lease.value, bury, left, lease.waiter,
        limit=lease.limit,
    )  # fmt: skip
    masters = deployment.masters
    # An extension under way may be healing the masters that had forgotten the lock.
    commands = to_masters(ask, lease.reached | lease.tally.forgot, masters)
    tally = Tally(masters)
    try:
        yield Round(commands, tally, awaited=awaited)
    except GeneratorExit:
        raise
    except BaseException:
        # The interrupt may have struck before a byte was sent; to release twice is harmless.
        yield Round(commands, Tally(masters), awaited=False)
        raise
    if tally.verdict is WON:
        return True
    return False if tally.denied else None
