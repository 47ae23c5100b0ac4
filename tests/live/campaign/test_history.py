"""The checker of histories accepts correct ones and no wrong one, as a full search does."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest

from tests.live.campaign.history import (
    Event,
    ObservedLease,
    broken_order,
    observed_leases,
)

A_STAYS = "a acquire 0 | a granted 1 fence=5 until=11"
A_HOLDS = f"{A_STAYS} | a release 4 | a released 5"
C_HOLDS = "c acquire 2 | c granted 5 fence=7 until=13"


def history(text: str) -> list[Event]:
    """Parse "worker what at name=value ... | ..."; the resource is r if none is named."""
    events = []
    for line in text.split("|"):
        worker, what, at, *rest = line.split()
        values = dict(one.split("=") for one in rest)
        events.append(
            Event(
                worker,
                what,
                float(at),
                values.get("resource", "r"),
                int(values.get("fence", 0)),
                float(values.get("until", 0)),
            )
        )
    return events


def broken(text: str) -> list[str]:
    found, wrong = observed_leases(history(text))
    return [*wrong, *map(str, broken_order(found))]


@pytest.mark.parametrize(
    "rest",
    [
        "b acquire 5 | b granted 6 fence=6 until=16",
        # Requested much earlier, granted between the request of the release and its reply.
        "b acquire 0 | b granted 4 fence=6 until=14",
        # A lease of another resource, held at the same time.
        "b acquire 1 resource=s | b granted 2 fence=5 until=12 resource=s",
        # The same for a slot, which is requested by its name.
        "b acquire 1 | b granted 2 fence=5 until=12 resource=r[1]",
        # Of two simultaneous requests either may be granted first.
        "b acquire 0 | b granted 0.5 fence=4 until=0.75",
        # It is unknown whether this one was granted, and no worker saw its fence.
        "b acquire 2",
        "b acquire 2 | b refused 3",
    ],
)
def test_a_right_history_is_accepted(rest: str) -> None:
    assert broken(f"{A_HOLDS} | {rest}") == []


def test_two_holders_of_one_slot_are_found() -> None:
    first = "a acquire 0 | a granted 1 fence=5 until=11 resource=r[1]"
    second = "b acquire 1 | b granted 2 fence=6 until=12 resource=r[1]"
    assert "before the lease" in broken(f"{first} | {second}")[0]


def test_an_expired_lease_is_not_held_although_its_worker_resumes() -> None:
    text = f"{A_STAYS} | b acquire 2 | b granted 12 fence=6 until=22"
    assert broken(text) == []
    assert broken(f"{text} | a release 30 | a released 31") == []


def test_a_renewed_lease_is_held_longer() -> None:
    text = f"{A_STAYS} | a renewed 9 until=18"
    b_holds = "b acquire 2 | b granted {} fence=6 until=40"
    assert broken(f"{text} | {b_holds.format(19)}") == []
    assert broken(f"{text} | {b_holds.format(17)}") != []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{A_HOLDS} | b acquire 5 | b granted 6 fence=5 until=16", "was granted before"),
        (f"{A_HOLDS} | b acquire 5 | b granted 6 fence=4 until=16", "before fence 4 was requested"),
        (f"{A_HOLDS} | b acquire 2 | b granted 3 fence=6 until=13", "1.000000 s before the lease"),
        # Also before the deadline of a worker that was killed.
        (
            f"{A_STAYS} | b acquire 2 | b granted 9 fence=6 until=19",
            "2.000000 s before the lease",
        ),
        # The lower fence is granted while the higher one is held.
        (
            f"a acquire 0 | a granted 9 fence=5 until=20 | {C_HOLDS}",
            "before the lease",
        ),
        # The conflict need not be with the previous grant.
        (
            f"{A_STAYS} | b acquire 2 | b granted 3 fence=6 until=4 | {C_HOLDS}",
            "fence 7, worker c: granted 6.000000 s before the lease of r, fence 5, worker a ended",
        ),
        (f"b acquire 9 | b granted 10 fence=4 until=20 | {A_HOLDS}", "was requested"),
        ("a granted 1 fence=5 until=11", "without a request"),
        ("a acquire 0 resource=s | a granted 1 fence=5 until=11", "without a request"),
        ("a renewed 1 until=11", "renewed without a held lease"),
        (f"{A_HOLDS} | a renewed 7 until=17", "renewed without a held lease"),
        (f"{A_STAYS} | a renewed 3 until=10", "shortened"),
        ("a acquire 2 | a granted 1 fence=5 until=11", "earlier than the event before it"),
    ],
)
def test_a_wrong_history_is_refused_with_its_reason(text: str, why: str) -> None:
    assert why in "\n".join(broken(text))


def searched(found: list[ObservedLease]) -> bool:
    """Search as Wing and Gong do: try every order of the grants, with every integer moment."""

    def fits(order: tuple[ObservedLease, ...], fence: int, free: float) -> bool:
        if not order:
            return True
        first, *rest = order
        return first.fence > fence and any(
            fits(tuple(rest), first.fence, max(at, first.ended))
            for at in range(int(first.asked), int(first.granted) + 1)
            if at >= free
        )

    return any(fits(order, 0, -math.inf) for order in permutations(found))


def test_the_check_agrees_with_a_full_search() -> None:
    rng = random.Random(7)
    correct = []
    for _ in range(3000):
        found = []
        for number in range(rng.randint(2, 4)):
            asked = rng.randint(0, 12)
            granted = asked + rng.randint(0, 4)
            # Mostly in order: otherwise hardly any history would be correct.
            fence = asked + granted + 1 if rng.random() < 0.6 else rng.randint(1, 20)
            # A stopped worker may get its reply after the end of its lease.
            until = asked + rng.randint(-4, 8)
            found.append(ObservedLease(str(number), "r", fence, asked, granted, until))
            if rng.random() < 0.5:
                found[-1].released = granted + rng.randint(0, 6)
        right = searched(found)
        assert (not broken_order(found)) is right, found
        correct.append(right)
    assert 300 < sum(correct) < 2700
