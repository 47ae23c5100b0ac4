"""When a waiter came, by the masters' clocks, and how long it pauses when nobody calls it."""

from __future__ import annotations

from statistics import median

from redlock_django.engine.quorum import Ballot, Tally

# Seconds after which a waiter asks although nobody has called it, and what is added for each
# who stands before it: so long may a call that was lost cost, and a crowd asks hardly more
# often than a few. In all no more than the last, else its queue could expire (LINGER).
FALLBACK, FOR_EACH, LONGEST = 0.1, 0.005, 2.0


def behind(tally: Tally, shown: int, took: float) -> int:
    """By how many µs, at least, our clock is behind a majority's; 0 if hardly.

    It showed `shown` when the round began, which `took` so many seconds. Each master brings a
    ticket near its own clock: waiters whose clocks are wrong would stand in another order on
    each, and refuse each other for long.
    """
    times = [vote.time for vote in tally.agreeing if vote.time is not None]
    if tally.skew is None or not tally.majority(len(times)):
        return 0
    most = round(median(times)) - shown
    least = min(max(most - round(took * 1_000_000), 0), most)  # they may have answered late
    return least if abs(least) > tally.skew / 2 else 0


def retry_delay(tally: Tally, delay: float, *, queueing: bool) -> float:
    """Seconds until it is worth asking again although nobody calls; `delay` is by chance."""
    left = free_in(tally)
    ahead = min((vote.ahead for vote in tally.votes if vote and vote.ahead >= 0), default=0)
    if queueing:
        delay = min(FALLBACK + delay / 2 + FOR_EACH * ahead, LONGEST)
    # A lock that expires calls nobody: the first in the queue asks first, and if that one is
    # gone, the next.
    return delay if left is None else min(delay, left + 0.001 + FOR_EACH * ahead)


def free_in(tally: Tally) -> float | None:
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
