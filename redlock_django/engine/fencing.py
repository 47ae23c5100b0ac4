"""The fencing token: a number that only grows from one holder of a resource to the next.

The rule, its proof and the counter-examples to simpler ones: each master proposes
`max(its stored fence + 1, the client's clock clamped to its own)`. The token is the
highest number any master answered, and it counts only once a majority of masters *that
still carry this very lock* have stored it. The next holder's majority shares a master
with that one, and that master answers more.
"""

from __future__ import annotations

from redlock_django.engine.quorum import Ballot, Tally, Vote


def highest(tally: Tally, resources: int) -> tuple[int, ...]:
    """The token for each of `resources` resources: the highest any agreeing master named.

    Refusals count too (plus one, since whoever is there has that fence): it costs
    nothing and survives the loss of one more master's memory. But not one so far ahead of
    its own master's clock that no master would confirm it.
    """
    best = [0] * resources
    for vote in tally.agreeing:
        if vote.ballot is Ballot.GRANTED:
            best = [max(pair) for pair in zip(best, vote.fences, strict=True)]
        elif vote.ballot is Ballot.REFUSED and vote.fences and _honest(vote, tally.skew):
            best[vote.resource] = max(best[vote.resource], vote.fences[0] + 1)
    return tuple(best)


def _honest(vote: Vote, skew: int | None) -> bool:
    return skew is None or vote.time is None or vote.fences[0] < vote.time + 2 * skew


def settled(tally: Tally, fences: tuple[int, ...]) -> bool:
    """Whether a majority that carries the lock has stored each of `fences` already."""
    votes = tally.counted()
    return all(
        tally.majority(sum(1 for vote in votes if vote.fences[index] >= fence))
        for index, fence in enumerate(fences)
    )
