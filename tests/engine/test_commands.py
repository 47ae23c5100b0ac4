"""The bytes of commands and queries, the parsing of replies, and the statuses of scripts."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from importlib.resources import files
from struct import pack
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
from redlock_django.engine.protocol.commands import (
    COMMANDS,
    ENDED,
    INCLUDE,
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Restore,
    Take,
    decode,
    script,
)
from redlock_django.engine.protocol.deployment import Deployment, identity, ms, numbers_of
from redlock_django.engine.protocol.query import Query
from redlock_django.engine.protocol.statuses import UNCOUNTED, Status
from redlock_django.engine.protocol.trust_marker import Join, read_marker
from redlock_django.engine.protocol.votes import Ballot, Vote
from tests.engine.mutants import kills
from tests.engine.mutation import instead
from tests.replies import packed

TOKEN = "0123456789abcdef" * 2
VALUE = f'{TOKEN} {{"pid":1}}'
DEPLOYMENT = Deployment(names=("a", "b", "c"), prefix="P")
TIME = 1_760_000_000_000_000
COMMON: dict[str, Any] = {"deployment": DEPLOYMENT, "resources": ("r", "s"), "value": VALUE}
ACQUIRE = Acquire(**COMMON, ttl=1.5, proposal=TIME)
CONFIRM = Confirm(**COMMON, fences=(7, 8))
EXTEND = Extend(**COMMON, ttl=1.5)
HEAL = Heal(**COMMON, ttl=1.5, fences=(7, 8))
RELEASE = Release(**COMMON)
SHORTEN = Release(**COMMON, left=1.5)
LEAVING = Release(**COMMON, waiter="P:wake:7 1")
TAKE = Take(**COMMON, ttl=1.5, proposal=TIME, expected="f" * 32, fences=(7, 8))
RESTORE = Restore(**COMMON, old="f" * 32)
SLOT: dict[str, Any] = {"deployment": DEPLOYMENT, "resources": ("r[1]",), "value": VALUE}
ACQUIRE_SLOT = Acquire(**SLOT, ttl=1.5, proposal=TIME, limit=3)
RELEASE_SLOT = Release(**SLOT, limit=3)
ALL = (ACQUIRE, CONFIRM, EXTEND, HEAL, RELEASE, SHORTEN, LEAVING, TAKE, RESTORE)


def said(command: Command, status: int, *rest: int | bytes) -> Vote:
    """Return the vote of a reply to a command."""
    return command.vote(status, TIME, packed(rest))


def test_deployment() -> None:
    assert DEPLOYMENT.masters == 3
    assert DEPLOYMENT.skew == 500_000
    numbers = "n=3,ttl=60000,skew=500,delay=63750"
    assert DEPLOYMENT.fingerprint == f"{numbers},masters={identity(('a', 'b', 'c'))[:16]}"
    assert numbers_of(DEPLOYMENT.fingerprint) == numbers
    assert ms(0.0015) == 2


@kills("a fingerprint without the skew", Deployment.fingerprint,
       instead("ms(self.max_clock_skew)", "0"))  # fmt: skip
@kills("a fingerprint without the masters", Deployment.fingerprint, instead("members[:16]", "''"))
def test_a_fingerprint_differs_where_a_number_differs() -> None:
    others = [
        Deployment(names=("a", "b")),
        Deployment(names=("a", "b", "c"), max_ttl=30),
        Deployment(names=("a", "b", "c"), max_clock_skew=0.4),
        Deployment(names=("a", "b", "c"), restart_delay=0),
        Deployment(names=("a", "b", "c"), failover=True),
        Deployment(names=("a", "b", "d")),
        Deployment(names=("a", "b", "c"), members="other_addresses"),
    ]
    prints = {deployment.fingerprint for deployment in [DEPLOYMENT, *others]}
    assert len(prints) == 8
    assert Deployment(names=("c", "b", "a")).fingerprint in prints, "their order does not count"
    assert not any(re.search(r"\s", text) for text in prints), "a marker is split at blanks"


def test_the_identity_of_masters_is_the_same_in_every_process_and_python() -> None:
    # Literal on purpose: a change here makes every site another deployment.
    assert identity(["a", "b", "c"]) == identity("cab") == "2009f21fb4b895f8d23c0ed69c220361"
    assert identity("abcd") != identity("abc")


@pytest.mark.parametrize("members", ["two words", "a,b", "a=b", "m\n"])
def test_members_that_would_make_a_marker_unreadable_are_refused(members: str) -> None:
    with pytest.raises(ValueError, match="letters and digits only"):
        Deployment(names=("a", "b", "c"), members=members)


def test_keys() -> None:
    pairs = ["P:lock:r", "P:fence:r", "P:lock:s", "P:fence:s"]
    tomb, queues = f"P:tomb:{TOKEN}", ["P:queue:r", "P:queue:s"]
    assert ACQUIRE.keys() == ["P:master", "P:held", tomb, *pairs, *queues]
    assert HEAL.keys() == ["P:master", "P:held", tomb, *pairs]
    assert CONFIRM.keys() == ["P:master", *pairs]
    assert EXTEND.keys() == ["P:master", "P:held", "P:lock:r", "P:lock:s"]
    locks = ["P:lock:r", "P:lock:s"]
    assert RELEASE.keys() == SHORTEN.keys() == LEAVING.keys() == ["P:held", *locks, *queues]
    assert Release(**COMMON, bury=True).keys() == ["P:held", *locks, tomb, *queues]
    assert Release(**COMMON, bury=True, calls=False).keys() == ["P:held", *locks, tomb]
    assert Release(**COMMON, calls=False).keys() == ["P:held", *locks]
    assert DEPLOYMENT.wake("7") == "P:wake:7"


def test_keys_of_a_slot() -> None:
    slots = ["P:lock:r", "P:lock:r[1]", "P:lock:r[2]"]
    pair, tomb = ["P:lock:r[1]", "P:fence:r[1]"], f"P:tomb:{TOKEN}"
    assert ACQUIRE_SLOT.keys() == ["P:master", "P:held", tomb, *pair, "P:queue:r", *slots]
    assert RELEASE_SLOT.keys() == ["P:held", "P:lock:r[1]", "P:queue:r", *slots]
    bury = Release(**SLOT, limit=3, bury=True)
    assert bury.keys() == ["P:held", "P:lock:r[1]", tomb, "P:queue:r", *slots]
    assert Release(**SLOT, limit=3, calls=False).keys() == ["P:held", "P:lock:r[1]"]


def test_arguments_of_a_slot() -> None:
    numbers = pack("<3d", TIME, 1500, 3)
    assert ACQUIRE_SLOT.arguments() == [VALUE, numbers]
    assert RELEASE_SLOT.arguments() == [VALUE]


def test_the_occupancy_of_a_slot_follows_the_rival() -> None:
    vote = said(ACQUIRE_SLOT, Status.REFUSED, 1, 900, 7, -1, b"f" * 32 + b"011")
    assert (vote.rival, vote.taken) == (b"f" * 32, b"011")
    assert not said(ACQUIRE_SLOT, Status.ABSENT, 1).taken


def test_arguments() -> None:
    numbers = pack("<3d", TIME, 1500, 0)
    assert ACQUIRE.arguments() == [VALUE, numbers]
    waiting = Acquire(**COMMON, ttl=1.5, proposal=TIME, waiter="P:wake:7 1", ticket=TIME - 5)
    assert waiting.arguments() == [VALUE, numbers, f"{TIME - 5} P:wake:7 1"]
    assert CONFIRM.arguments() == [VALUE, 7, 8]
    assert EXTEND.arguments() == [VALUE, 1500]
    assert HEAL.arguments() == [VALUE, 1500, 7, 8]
    assert RELEASE.arguments() == [VALUE, "2 0 0 "]
    assert SHORTEN.arguments() == [VALUE, "2 0 1500 "]
    assert Release(**COMMON, bury=True).arguments() == [VALUE, "2 1 0 "]
    assert LEAVING.arguments()[1] == "2 0 0 P:wake:7 1"


def test_arguments_are_integers_strings_and_bytes() -> None:
    for command in (*ALL, ACQUIRE_SLOT, RELEASE_SLOT):
        assert {type(argument) for argument in command.arguments()} <= {int, str, bytes}


def test_a_reply_is_one_string() -> None:
    data = pack("<4q", 7, Status.GRANTED, TIME, 2**53) + b"text"
    assert decode(data) == (7, Status.GRANTED, TIME, pack("<q", 2**53) + b"text")
    assert decode(data[:24]) == (7, Status.GRANTED, TIME, b"")


@pytest.mark.parametrize("other", [b"x" * 23, "x" * 24, [b"x" * 24], 7, None, [7, 1, TIME]])
def test_another_answer_is_not_a_reply(other: object) -> None:
    with pytest.raises(ValueError, match="not the reply of a script"):
        decode(other)


def test_a_ticket_is_taken_by_its_token() -> None:
    tombs = [f"P:tomb:{TOKEN}", f"P:tomb:{'f' * 32}"]
    assert TAKE.keys() == ["P:master", "P:held", *tombs, "P:lock:r", "P:lock:s"]
    assert TAKE.arguments() == [VALUE, "f" * 32, 1500]
    used = said(TAKE, Status.USED, b"e" * 32)
    assert (used.ballot, used.rival, used.time) == (Ballot.REFUSED, b"e" * 32, TIME)
    granted = said(TAKE, Status.GRANTED, 900)
    assert (granted.ballot, granted.time, granted.ttl) == (Ballot.GRANTED, TIME, 900)
    assert granted.fences == (7, 8)
    absent = said(TAKE, Status.ABSENT, 1)
    assert (absent.absent, absent.rival) == (True, ENDED)
    held = said(TAKE, Status.REFUSED, 1, 5, 0, -1, b"e" * 32)
    assert (held.absent, held.rival) == (False, ENDED)
    assert "f" * 32 not in repr(TAKE)


def test_the_undo_of_a_ticket_restores_its_token() -> None:
    assert TAKE.restore() == RESTORE
    tombs = [f"P:tomb:{'f' * 32}", "P:held", f"P:tomb:{TOKEN}"]
    assert RESTORE.keys() == [*tombs, "P:lock:r", "P:lock:s"]
    assert RESTORE.arguments() == [VALUE]
    assert replace(RESTORE, bury=True).keys() == RESTORE.keys(), "it buries in any case"
    assert said(RESTORE, Status.GRANTED).ballot is Ballot.GRANTED
    assert "f" * 32 not in repr(RESTORE)


def test_names_scripts_and_flags() -> None:
    assert [command.name for command in COMMANDS] == [
        "acquire", "confirm", "extend", "heal", "release", "restore", "take",
    ]  # fmt: skip
    assert [command.name for command in COMMANDS if command.sets] == [
        "acquire", "heal", "take",
    ]  # fmt: skip
    assert [command.name for command in COMMANDS if not command.trusted] == [
        "release", "restore",
    ]  # fmt: skip
    for name in (*(command.name for command in COMMANDS), "join"):
        text, sha = script(name, DEPLOYMENT)
        assert re.fullmatch("[0-9a-f]{40}", sha)
        assert "KEYS" in text
        # A key name built in Lua would be unknown to ACLs and clusters.
        assert ".. ':" not in text


def test_a_bare_command_has_neither_keys_nor_arguments() -> None:
    bare = Command(**COMMON)
    assert bare.token == TOKEN
    with pytest.raises(NotImplementedError):
        bare.keys()
    with pytest.raises(NotImplementedError):
        bare.arguments()


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize(
    ("left", "text"),
    [
        (1500, "held by another client for 1.5 s"),
        (-1, "held by another client with no expiry"),
        (0, "held by another client for 0 s"),
    ],
)
def test_refused(command: Command, left: int, text: str) -> None:
    rival = b"fedcba9876543210" * 2
    vote = said(command, Status.REFUSED, 2, left, 41, -1, rival)
    assert vote.ballot is Ballot.REFUSED
    assert (vote.reason, vote.ttl, vote.fences, vote.resource) == (text, left, (41,), 1)
    assert vote.rival == (ENDED if isinstance(command, Take) else rival)
    assert rival.decode() not in vote.reason


@pytest.mark.parametrize("command", ALL)
def test_absent(command: Command) -> None:
    vote = said(command, Status.ABSENT, 2)
    assert vote.ballot is Ballot.REFUSED
    assert vote.absent
    assert vote.resource == 1
    assert vote.rival == (ENDED if isinstance(command, Take) else None)
    assert vote.ttl is None


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize(
    "status", [Status.NOT_READY, Status.BURIED, Status.FENCE_AHEAD, Status.CORRUPT]
)
def test_failed(command: Command, status: int) -> None:
    vote = said(command, status)
    assert vote.ballot is Ballot.FAILED
    assert vote.time == TIME
    assert vote.sent
    assert vote.reason


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize(
    ("status", "rest"),
    [
        (Status.GRANTED, b"7"),
        (Status.GRANTED, packed([7, 8, 9])),
        (Status.GRANTED, packed([7, 8, b"x"])),
        (Status.REFUSED, b""),
        (Status.REFUSED, packed([1, 5, 0])),
        (Status.ABSENT, b""),
        (Status.ABSENT, b"1"),
        (Status.ABSENT, packed([1, 1])),
        (Status.KNOWN, b""),
        (-99, b""),
    ],
)
def test_a_malformed_reply_is_never_a_vote(command: Command, status: int, rest: bytes) -> None:
    # The links treat these errors as a reply out of step.
    with pytest.raises((struct.error, KeyError)):
        command.vote(status, TIME, rest)


def test_no_reason_ever_holds_a_token() -> None:
    replies: list[tuple[Status, list[int | bytes]]] = [
        (Status.REFUSED, [1, 5, 0, -1, TOKEN.encode()]),
        (Status.ABSENT, [1]),
        (Status.NOT_READY, []),
        (Status.BURIED, [TOKEN.encode()]),
        (Status.FENCE_AHEAD, []),
        (Status.CORRUPT, []),
    ]
    for command in ALL:
        numbers: list[int | bytes] = [7, 8] if command.fenced else []
        if isinstance(command, Take):
            numbers = [900]
        for status, rest in [(Status.GRANTED, numbers), *replies]:
            assert TOKEN not in said(command, status, *rest).reason
    assert DEPLOYMENT.fingerprint.isprintable()


# Queries.

LIST = ListHeld(deployment=DEPLOYMENT, most=10)
READ = ReadLocks(deployment=DEPLOYMENT, resources=("r", "s"))
FACTS = ReadFacts(deployment=DEPLOYMENT)
JOIN = Join(deployment=replace(DEPLOYMENT, restart_delay=2), run_id="1f", mode="join")
HEAD = packed([0, Status.GRANTED, TIME])


def force(value: bytes) -> ForceRelease:
    return ForceRelease(deployment=DEPLOYMENT, resource="r", value=value)


ASKED: tuple[Query[Any], ...] = (LIST, READ, FACTS, JOIN, force(b"theirs"))


def test_every_query_has_a_script() -> None:
    assert {type(query) for query in ASKED} == {*QUERIES, Join}
    for query in ASKED:
        assert re.fullmatch("[0-9a-f]{40}", script(query.name, query.deployment)[1])


def test_keys_of_queries() -> None:
    assert LIST.keys() == ["P:held"]
    assert READ.keys() == ["P:lock:r", "P:lock:s", "P:queue:r", "P:queue:s"]
    assert FACTS.keys() == ["P:master", "P:held", "P:lock:", "P:fence:", "P:tomb:"]
    assert JOIN.keys() == ["P:master"]


def test_arguments_of_queries() -> None:
    assert LIST.arguments() == [10]
    assert READ.arguments() == []
    assert FACTS.arguments() == ["P:wake:"]
    assert JOIN.arguments() == ["1f", JOIN.deployment.fingerprint, 2_000_000, "join"]
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


# The scripts and their statuses.

LUA = {
    path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
    for path in files("redlock_django.engine.protocol").joinpath("lua").iterdir()
}
INCLUDES = {part for text in LUA.values() for part in INCLUDE.findall(text)}
SCRIPTS = sorted(LUA.keys() - INCLUDES)
# A reply begins with the round, a status and a comma; a status may be in a variable first.
ROUND = r"struct.pack\('<[i8]+', (?:round|tonumber\(ARGV\[1\]\)), "
REPLIED = re.compile(rf"{ROUND}([^,]+),")
ASSIGNED = re.compile(r"\bstatus\b[\w, ]* = (\w+)")


def _whole(name: str) -> str:
    """Return the text of a file with what it includes."""
    return INCLUDE.sub(lambda line: _whole(line[1]), LUA[name])


def _code(lua: str) -> str:
    return re.sub(r"--.*", "", lua)


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_script_answers_with_names_of_the_table(name: str) -> None:
    code = _code(LUA[name])
    replied = REPLIED.findall(code)
    assert replied or name in INCLUDES
    assert len(replied) == len(re.findall(ROUND, code))
    assert {*replied, *ASSIGNED.findall(code)} - {"status"} <= Status.__members__.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sent_with_numbers(name: str) -> None:
    text, _ = script(name, DEPLOYMENT)
    numbers = [
        str(Status.__members__.get(status, status))
        for status in REPLIED.findall(_code(_whole(name)))
    ]
    assert REPLIED.findall(_code(text)) == numbers
    assert not re.search(rf"\b({'|'.join(Status.__members__)})\b", text)


def test_a_script_has_the_numbers_of_its_deployment() -> None:
    other = Deployment(
        names=("a",), max_ttl=7, max_clock_skew=0.003, fence_ttl=77, prefix="redløck:17"
    )
    names = {name for name, _ in DEPLOYMENT.constants}
    for name in SCRIPTS:
        code = _code(_whole(name))
        used = {each for each in names if re.search(rf"\b{each}\b", code)}
        texts = [_code(script(name, one)[0]) for one in (DEPLOYMENT, other)]
        assert (texts[0] != texts[1]) is bool(used), name
        for each, number in other.constants:
            assert not re.search(rf"\b{each}\b", texts[1]), name
            assert each not in used or re.search(rf"\b{number}\b", texts[1]), name
    assert dict(other.constants) == {
        "SKEW": 3_000, "MAX_TTL": 7_000, "FENCE_TTL": 77_000, "NAME": 18,
    }  # fmt: skip


def test_every_status_is_one_that_a_script_answers() -> None:
    everything = _code("".join(LUA.values()))
    assert {
        name for name in Status.__members__ if re.search(rf"\b{name}\b", everything)
    } == Status.__members__.keys()


def test_each_status_has_a_number_of_its_own() -> None:
    assert len(Status.__members__) == len(Status)
    assert set(UNCOUNTED) < set(Status)
