"""The queries of inspection and join: their keys, their arguments, and how replies are read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redlock_django.engine.inspection.queries import (
    QUERIES,
    ForceRelease,
    ListHeld,
    MasterFacts,
    ReadFacts,
    ReadLocks,
    StoredLock,
)
from redlock_django.engine.protocol.commands import Release, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.query import Query
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import Join, read_marker
from redlock_django.engine.protocol.votes import Ballot
from tests.replies import packed

TIME = 1_760_000_000_000_000
HEAD = packed([0, Status.GRANTED, TIME])
TOKEN = "0123456789abcdef" * 2
DEPLOYMENT = Deployment(names=("a", "b", "c"), prefix="P", restart_delay=2)
LIST = ListHeld(deployment=DEPLOYMENT, most=10)
READ = ReadLocks(deployment=DEPLOYMENT, resources=("r", "s"))
FACTS = ReadFacts(deployment=DEPLOYMENT)
JOIN = Join(deployment=DEPLOYMENT, run_id="1f", mode="join")


def force(value: bytes) -> ForceRelease:
    return ForceRelease(deployment=DEPLOYMENT, resource="r", value=value)


ALL: tuple[Query[Any], ...] = (LIST, READ, FACTS, JOIN, force(b"theirs"))


def test_every_query_has_a_script() -> None:
    assert {type(query) for query in ALL} == {*QUERIES, Join}
    for query in ALL:
        assert re.fullmatch("[0-9a-f]{40}", script(query.name, query.deployment)[1])


def test_keys() -> None:
    assert LIST.keys() == ["P:held"]
    assert READ.keys() == ["P:lock:r", "P:lock:s", "P:queue:r", "P:queue:s"]
    assert FACTS.keys() == ["P:master", "P:held", "P:lock:", "P:fence:", "P:tomb:"]
    assert JOIN.keys() == ["P:master"]


def test_arguments() -> None:
    assert LIST.arguments() == [10]
    assert READ.arguments() == []
    assert FACTS.arguments() == ["P:wake:"]
    assert JOIN.arguments() == ["1f", DEPLOYMENT.fingerprint, 2_000_000, "join"]
    other = Join(deployment=DEPLOYMENT, run_id="1f", mode="trust", fingerprint="n=9", delay=0)
    assert other.arguments() == ["1f", "n=9", 0, "trust"]


def test_a_forced_release_buries_only_tokens_of_this_package() -> None:
    value = f'{TOKEN} {{"pid":1}}'
    ours, theirs = force(value.encode()), force(b"\xff theirs")
    release = Release(deployment=DEPLOYMENT, resources=("r",), value=TOKEN, bury=True)
    assert ours.keys() == release.keys()
    assert ours.arguments() == [value.encode(), *release.arguments()[1:]]
    assert theirs.keys() == ["P:held", "P:lock:r", "P:queue:r"]
    assert theirs.arguments() == [b"\xff theirs"]
    assert ours.read(HEAD).ballot is Ballot.GRANTED
    assert ours.read(packed([0, Status.ABSENT, TIME, 1])).absent
    assert TOKEN not in repr(ours)


def test_listings_are_read() -> None:
    assert LIST.read([HEAD, 3, b"r", b"s"]) == (3, [b"r", b"s"])


def test_locks_are_read_with_their_values() -> None:
    lock, free = READ.read([HEAD, TOKEN.encode(), 1500, 3, None, -2, 0])
    assert lock == StoredLock(TOKEN.encode(), 1.5, waiters=3)
    assert free is None
    assert TOKEN not in repr(lock)
    assert READ.read([HEAD, b"x", -1, 0, None, -2, 0])[0] == StoredLock(b"x", None)
    with pytest.raises(ValueError, match="another question"):
        READ.read([HEAD])


def test_facts_are_read() -> None:
    facts = FACTS.read([HEAD, None, None, b"get", b"set OOM no \xff"])
    assert facts == MasterFacts(None, None, ("get",), {"set": "OOM no �"}, TIME)
    facts = FACTS.read([HEAD, b"marker", 5])
    assert facts == MasterFacts(b"marker", 5, (), {}, TIME)


def test_join_is_read() -> None:
    reply = JOIN.read(packed([0, Status.FRESH, TIME, b"1f 5 n=3"]))
    assert reply == (0, Status.FRESH, TIME, b"1f 5 n=3")
    for other in (b"1f 5 n=3", [0, Status.FRESH, TIME], None):
        with pytest.raises(ValueError, match="not the reply of a script"):
            JOIN.read(other)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status.KNOWN, b""),
        (Status.MISMATCH, b"no marker"),
        (Status.UNMARKED, b"1f 7 n=3"),
        (99, b"canary" * 9),
    ],
)
def test_a_string_that_join_has_not_written_is_no_answer(status: int, text: bytes) -> None:
    with pytest.raises(ValueError, match="not a marker"):
        JOIN.read(packed([0, status, 5, text]))


def test_a_blank_of_unicode_is_no_blank_in_a_marker() -> None:
    # As in join.lua, which finds a marker of another deployment here.
    other = read_marker("1f 7 n=3\N{NO-BREAK SPACE}".encode())
    assert other is not None
    assert other.deployment == "n=3\N{NO-BREAK SPACE}"


def test_a_query_is_called_by_its_hash_or_by_its_text() -> None:
    text, sha = script("join", JOIN.deployment)
    words = (1, "P:master", 0, *JOIN.arguments())
    assert JOIN.call() == ("EVALSHA", sha, *words)
    assert JOIN.call(text=True) == ("EVAL", text, *words)
