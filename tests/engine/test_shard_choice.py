"""Which shard a resource belongs to: the same everywhere, and moved by no other shard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from redlock_django.engine.protocol.shard_choice import chosen, identity

masters = st.text("abcdef.:0123456789/", min_size=1, max_size=20)
shards = st.lists(
    st.lists(masters, min_size=1, max_size=5, unique=True).map(identity),
    min_size=1,
    max_size=8,
    unique=True,
)
resources = st.text(min_size=1, max_size=60).filter(lambda name: name.isprintable())

FOUR = [identity(f"10.0.{shard}.{n}/6379/0" for n in range(3)) for shard in range(4)]
EXPECTED = [3, 3, 0, 2, 1, 2, 1, 2, 2, 1, 0, 3]
IDENTITY_OF_ABC = "2009f21fb4b895f8d23c0ed69c220361"


@given(st.lists(masters, min_size=1, max_size=5, unique=True), st.randoms())
def test_a_shard_is_the_same_in_whatever_order_its_masters_are_named(
    names: list[str], rng: Random
) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert identity(shuffled) == identity(names)
    assert identity([*names, "one more"]) != identity(names)


@given(shards, resources, st.randoms())
def test_the_order_of_the_shards_moves_nothing(
    identities: list[str], resource: str, rng: Random
) -> None:
    shuffled = list(identities)
    rng.shuffle(shuffled)
    assert shuffled[chosen(shuffled, resource)] == identities[chosen(identities, resource)]


@given(shards.filter(lambda every: len(every) > 1), resources)
def test_a_shard_that_leaves_moves_its_own_resources_only(
    identities: list[str], resource: str
) -> None:
    before = identities[chosen(identities, resource)]
    for gone in identities:
        rest = [one for one in identities if one != gone]
        after = rest[chosen(rest, resource)]
        assert after == before or gone == before


@given(shards, resources)
def test_a_new_shard_takes_resources_and_moves_no_others(
    identities: list[str], resource: str
) -> None:
    new = identity(["the new one"])
    after = [new, *identities]
    assert after[chosen(after, resource)] in (new, identities[chosen(identities, resource)])


def test_every_shard_has_its_share() -> None:
    many = 40_000
    shares = Counter(chosen(FOUR, f"order:{n}") for n in range(many))
    # The deviation of a share is 87; five times that happens once in a million tries.
    assert all(abs(shares[shard] - many / 4) < 5 * 87 for shard in range(4)), shares


def test_the_shard_of_a_resource_is_the_same_in_every_process_and_python() -> None:
    # Literal on purpose: a change here moves the resources of every site to other shards.
    assert [chosen(FOUR, f"order:{n}") for n in range(12)] == EXPECTED
    assert identity(["a", "b", "c"]) == IDENTITY_OF_ABC
    code = (
        "from tests.engine.test_shard_choice import FOUR, chosen\n"
        "print([chosen(FOUR, f'order:{n}') for n in range(12)])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == str(EXPECTED)
