"""How long a client pauses before it asks again for a lock that it did not get."""

from __future__ import annotations

import math
from statistics import median

from redlock_django.engine.quorum import Tally
from redlock_django.engine.refusal import free_in

# How soon a waiter that may miss its call asks again, in seconds. The pause grows to LONGEST with
# the number of waiters in front, so that many waiters ask hardly more often than a few.
FALLBACK, LONGEST = 0.1, 2.0
# The same for a waiter that will be called; its jitter adds up to CALM. Before the waiter is the
# last one, a call to another waiter asks it to watch (`ask_to_watch` in queue.lua).
CALM, CALM_LONGEST = 1.0, 10.0
CROWD = 400  # waiters in front that prolong a pause by half the way to the longest one
TURN = 100  # ms of a waiter's turn; as in queue.lua
NEAR = 8  # with more waiters in front, a waiter hardly watches a turn that another one watches
UNREACHABLE = 20  # how many times longer a pause is without a quorum: up to 2 s


def clock_lag(tally: Tally, shown: int, took: float) -> int:
    """Return by how many µs, at least, this client's clock is behind a majority's; 0 if near.

    The client's clock showed `shown` when the round began; the round took `took` seconds. Each
    master stores a ticket near its own clock: waiters whose clocks are wrong would be in a
    different order on each master, and refuse each other for long.
    """
    times = [vote.time for vote in tally.agreeing if vote.time is not None]
    if tally.skew is None or not tally.majority(len(times)):
        return 0
    most = round(median(times)) - shown
    least = min(max(most - round(took * 1_000_000), 0), most)  # the masters may answer late
    return least if abs(least) > tally.skew / 2 else 0


def retry_delays(tally: Tally, delay: float, *, queueing: bool) -> tuple[float, float]:
    """Return the seconds to pause before asking again without a call.

    The second number is for a waiter that may miss its call. `delay` is random, and grows from
    attempt to attempt up to 0.1.
    """
    if tally.unreachable:
        # Otherwise many waiters on a busy host would use the processor time that the replies need.
        delay *= UNREACHABLE
    queued = tally.queueing
    ahead = min((vote.ahead for vote in queued), default=0)
    called = unheard = delay
    if queueing:
        called = unheard = _prolonged(FALLBACK + delay / 2, LONGEST, ahead)
        if tally.majority(len(queued)):
            called = _prolonged(CALM * (1 + 10 * delay), CALM_LONGEST, ahead)
    expired = _until_expiry(tally, ahead)
    return min(called, expired), min(unheard, expired)


def _until_expiry(tally: Tally, ahead: int) -> float:
    """Return the seconds after which a waiter asks because what is in its way has expired.

    The expiry of a lock does not call waiters. So the first waiter in the queue asks first and, if
    that waiter is gone, the next one, all of them within half a second. No other waiter watches a
    turn that this attempt has begun. Other waiters do watch any other turn. If all of them asked at
    its end, a crowd would find one turn after the other, and use the processor time that the
    waiters with these turns need.
    """
    left = free_in(tally)
    if left is None:
        return math.inf
    turns = [vote.ttl or 0 for vote in tally.votes if vote and vote.reserved]
    if tally.majority(sum(turn >= TURN for turn in turns)):
        after = 0.0
    elif tally.majority(len(turns)):
        after = 0.005 * ahead * max(1.0, ahead / NEAR)
    else:
        after = 0.5 * ahead / (ahead + 100)
    return left + 0.001 + after


def _prolonged(pause: float, longest: float, ahead: int) -> float:
    """Return a pause, longer for more waiters `ahead`, so that not all of them ask together."""
    return pause + (longest - pause) * ahead / (ahead + CROWD)
