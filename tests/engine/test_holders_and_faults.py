"""Inspection: the holder of a resource, merged from N masters, and the faults of servers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Formatter

import pytest

from redlock_django.engine.inspection.faults import FAULTS, fault
from redlock_django.engine.inspection.holders import (
    Holding,
    HoldingState,
    Sighting,
    holder_of,
    merge,
)
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Tally

PACKAGE = Path(__file__).parents[2] / "redlock_django"
OURS = b"a" * 32 + b' {"host":"web1","pid":7,"at":1790000000.5}'
OTHER = b"b" * 32 + b" {}"


def seen(*values: bytes | None, silent: int = 0, ttl: float | None = 9.0) -> Holding:
    """Return what these masters hold, of `len(values) + silent` in all."""
    masters = [f"m{index}" for index in range(len(values) + silent)]
    found = zip(masters, values, strict=False)
    sightings = [Sighting(name, value, ttl) for name, value in found if value]
    return merge("r", sightings, masters, masters[len(values) :])


@pytest.mark.parametrize(
    ("holding", "state"),
    [
        (seen(OURS, OURS, OURS), HoldingState.HELD),
        (seen(OURS, OURS, None), HoldingState.HELD),
        (seen(OURS, OURS, ttl=1.9), HoldingState.EXPIRING),
        (seen(OURS, OURS, ttl=None), HoldingState.HELD),
        (seen(OURS, None, None), HoldingState.PARTIAL),
        (seen(OURS, None, silent=1), HoldingState.UNCLEAR),
        (seen(OURS, OTHER, None), HoldingState.DISAGREEING),
        (seen(b"theirs", b"theirs", b"theirs"), HoldingState.FOREIGN),
    ],
)
def test_states(holding: Holding, state: HoldingState) -> None:
    assert holding.state is state


def test_servers_that_answered_without_the_lock_are_missing() -> None:
    assert seen(OURS, OURS, None).missing == ("m2",)
    assert seen(OURS, OURS, OTHER).missing == ()  # a rival's
    assert seen(OURS, OURS, silent=1).missing == ()
    assert seen(OURS, None, None).missing == ()  # it is not held


def test_the_time_left_is_that_of_the_quorum() -> None:
    def left(*ttls: float | None) -> float | None:
        sightings = [Sighting(f"m{n}", OURS, ttl) for n, ttl in enumerate(ttls)]
        return merge("r", sightings, ("m0", "m1", "m2"), ()).ttl

    assert left(5.0, 9.0, 7.0) == 7.0
    assert left(5.0, None) == 5.0
    assert left(5.0) == 5.0
    assert left(None, None) is None


def test_the_leading_holder_is_the_one_that_most_masters_know() -> None:
    holding = seen(OTHER, OURS, OURS)
    assert [sighting.server for sighting in holding.leading] == ["m1", "m2"]
    assert [sighting.server for sighting in holding.rivals] == ["m0"]
    assert holding.value == OURS
    assert holding.fingerprint == holding.leading[0].fingerprint != holding.rivals[0].fingerprint
    assert len(seen(b"theirs").fingerprint) == 8
    assert holding.holder == {"host": "web1", "pid": 7, "at": 1790000000.5}
    assert holding.since == 1790000000.5


@pytest.mark.parametrize(
    ("search", "fits"),
    [
        ("", True),
        ("R", True),
        ("eb1", True),
        ("WEB1 7", True),
        ("web1 8", False),
        ("70", False),  # a process id is compared as a whole
        ("1790000000", False),
    ],
)
def test_a_search_is_for_each_word_in_the_name_or_the_holder(search: str, fits: bool) -> None:
    assert seen(OURS, OURS).fits(search) is fits


@pytest.mark.parametrize("at", [None, "yesterday", -1, 1e14, True])
def test_an_impossible_time_is_none(at: object) -> None:
    assert seen(b"a" * 32 + b" " + json.dumps({"at": at}).encode()).since is None


@pytest.mark.parametrize(
    ("about", "until"),
    [
        ({"at": 1e9, "min_hold": 5}, 1e9 + 5),
        ({"at": 1e9}, None),
        ({"min_hold": 5}, None),
        ({"at": 1e9, "min_hold": "5"}, None),
        ({"at": 1e9, "min_hold": 0}, None),
        ({"at": 1e9, "min_hold": -5}, None),
        ({"at": 1e9, "min_hold": 1e14}, None),
    ],
)
def test_the_end_of_a_minimum_hold(about: dict[str, object], until: float | None) -> None:
    value = b"a" * 32 + b" " + json.dumps(about).encode()
    assert seen(value, value, None).minimum_hold_until == until
    assert seen(value, None, None).minimum_hold_until is None  # on too few servers


@pytest.mark.parametrize(("about", "handed_on"), [({"handed_on": 1}, True), ({}, False)])
def test_a_lock_says_that_it_was_handed_on(about: dict[str, object], handed_on: bool) -> None:
    value = b"a" * 32 + b" " + json.dumps(about).encode()
    assert seen(value, value, None).handed_on is handed_on


@pytest.mark.parametrize(
    "about",
    [
        b"not ours",
        b"a" * 32 + b" {",
        b"a" * 32 + b' {"deep": ' + b"[" * 100_000,
        b"a" * 32 + b' {"pid": ' + b"9" * 10_000 + b"}",
        b"a" * 32 + b' {"pid": NaN, "at": 1e999, "app": 1e308, "path": null, "user": ["x"]}',
    ],
)
def test_unusable_holder_information_is_empty(about: bytes) -> None:
    assert holder_of(about) == {}


def test_holder_information_is_safe_to_show_anywhere() -> None:
    said = {"path": "/a\nb\x1b[31m\u202e\ud800", "\x00user": "x" * 1000, "name": "Żaba 蛙"}
    shown = holder_of(b"a" * 32 + b" " + json.dumps(said).encode())
    assert shown["path"] == r"/a\nb\x1b[31m\u202e\ud800"
    assert shown[r"\x00user"] == "x" * 199 + "…"
    assert shown["name"] == "Żaba 蛙"


def test_a_repr_holds_no_token() -> None:
    token, lost = "a1b2" * 8, Tally(3, rivals=True)
    seen_here = merge("r", [Sighting("m0", token.encode() + b" {}", None)], ("m0",), ())
    lost.cast(0, Vote(Ballot.REFUSED, "held by another client", rival=token.encode()))
    release = Release(deployment=Deployment(names=("m",)), resources=("r",), value=f"{token} {{}}")
    text = f"{seen_here!r} {lost.votes!r} {release!r}"
    assert seen_here.fingerprint in text
    assert "held by another client" in text
    assert token not in text


def test_each_holder_has_a_holding_of_its_own() -> None:
    ours, rival = b"a" * 32 + b" {}", b"b" * 32 + b" {}"
    sightings = [Sighting("m0", ours, 5.0), Sighting("m1", rival, 5.0), Sighting("m2", ours, 5.0)]
    both = merge("r", sightings, ("m0", "m1", "m2"), ()).by_holder()
    assert [[one.server for one in holding.leading] for holding in both] == [["m0", "m2"], ["m1"]]
    assert [holding.rivals for holding in both] == [(), ()]


@pytest.mark.parametrize(
    ("resource", "about", "said"),
    [
        ("export", b"{}", ("export", None, None, "export")),
        ("export", b'{"limit":3}', ("export", 0, 3, "export, slot 0")),
        ("export[2]", b'{"limit":3}', ("export", 2, 3, "export, slot 2")),
        ("export[2]", b"{}", ("export", 2, None, "export, slot 2")),
        ("export", b'{"limit":1}', ("export", None, None, "export")),
        ("export", b'{"limit":"3"}', ("export", None, None, "export")),
        ("export", b'{"limit":1001}', ("export", None, None, "export")),
    ],
)
def test_the_slot_of_a_holding(
    resource: str, about: bytes, said: tuple[str, int | None, int | None, str]
) -> None:
    value = b"a" * 32 + b" " + about
    holding = merge(resource, [Sighting("m0", value, 9.0)], ["m0"], [])
    assert (holding.name, holding.slot, holding.limit, holding.label) == said


# The table of faults.


@pytest.mark.parametrize("code", FAULTS)
def test_every_fault_says_what_to_do(code: str) -> None:
    kind = FAULTS[code]
    fields = [f for text in kind[:2] for _, f, _, _ in Formatter().parse(text) if f]
    one = fault(code, **dict.fromkeys(fields, 7))
    assert str(one) == f"{one.text}: {one.remedy}"
    assert one.text.strip()
    assert one.remedy.strip()
    assert not one.remedy.endswith(".")


def test_every_fault_of_the_code_is_in_the_table_and_the_other_way_round() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'\bfault\(\s*"(\w+)"', code))
    computed = {"unreachable", "untrusted", "acl", "errors", "waiting"}  # fault(code, …)
    assert named | computed == FAULTS.keys()
