"""The fencing token: a number that grows from one holder of a resource to the next.

Each master proposes `max(its stored fence + 1, the client's clock clamped to the master's)`. The
token is the highest number that a master answered. It is valid only after a majority of masters
*that still have this very lock* have stored it. The majority of the next holder shares a master
with that majority, and this master answers a higher number.
"""

from __future__ import annotations

from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Tally

_GRANTED = Ballot.GRANTED  # a member of an enum takes long to look up


def highest(tally: Tally, resources: int) -> tuple[int, ...]:
    """Return the token of each of `resources` resources: the highest number of an agreeing master.

    A refusal counts too, plus one, because the holder in the way has that fence: this costs nothing
    and survives the loss of one more master's memory. A refusal does not count if its fence is so
    far ahead of its own master's clock that no master would confirm it.
    """
    best = (0,) * resources
    for vote in tally.agreeing:
        if vote.ballot is _GRANTED:
            if vote.fences != best:
                best = tuple([max(pair) for pair in zip(best, vote.fences, strict=True)])
        elif vote.ballot is Ballot.REFUSED and vote.fences and _honest(vote, tally.skew):
            at, above = vote.resource, vote.fences[0] + 1
            best = (*best[:at], max(best[at], above), *best[at + 1 :])
    return best


def _honest(vote: Vote, skew: int | None) -> bool:
    return skew is None or vote.time is None or vote.fences[0] < vote.time + 2 * skew


def stored_by_majority(tally: Tally, fences: tuple[int, ...]) -> bool:
    """Return whether a majority that has the lock has stored each of `fences` already."""
    stored = [vote.fences for vote in tally.counted()]
    return all(
        tally.majority(sum([numbers[index] >= fence for numbers in stored]))
        for index, fence in enumerate(fences)
    )
