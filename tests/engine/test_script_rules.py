"""Rules of the scripts that no round and no seed shows: what a master replies to one command."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from redlock_django.backends.memory.commands import ServerError
from redlock_django.engine.protocol.commands import (
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Reply,
    Take,
)
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import Join
from tests.engine.lua_mutation import lua, script_mutated
from tests.engine.masters import MARKER, Masters
from tests.engine.mutants import kills
from tests.replies import unpacked

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def _common(masters: Masters, token: str = A, *resources: str) -> dict[str, Any]:
    chosen = resources or ("r",)
    return {"deployment": masters.deployment, "resources": chosen, "value": f"{token} {{}}"}


def _acquire(masters: Masters, token: str = A, *resources: str, waiter: str = "") -> Acquire:
    now = int(masters.now * 1_000_000)
    common = _common(masters, token, *resources)
    return Acquire(**common, ttl=10.0, proposal=now, waiter=waiter, ticket=now)


def _said(masters: Masters, command: Command, ready_at: int = 0) -> list[Any]:
    return unpacked(masters.memories[0].say(command, 0, MARKER, ready_at))


@kills("any marker will do", "trusted", lua("seen[1] ~= ARGV[#ARGV - 1] or"))
@kills("ready before its time", "trusted", lua(" or now < tonumber(ARGV[#ARGV])"))
def test_no_script_counts_a_master_without_its_marker_or_before_its_time(master: Masters) -> None:
    memory, now = master.memories[0], int(master.now * 1_000_000)
    fence = int(_said(master, _acquire(master))[2])
    common, later = _common(master), now + 1_000_000
    commands: tuple[Command, ...] = (
        Acquire(**common, ttl=10.0, proposal=now),
        Acquire(**common, ttl=10.0, proposal=now, limit=2),
        Confirm(**common, fences=(fence,)),
        Extend(**common, ttl=10.0),
        Heal(**common, ttl=10.0, fences=(fence,)),
        Take(**{**common, "value": f"{B} {{}}"}, ttl=10.0, proposal=now, expected=A, fences=(0,)),
    )
    stored = dict(memory.keyspace.strings)
    for command in commands:
        for marker, ready_at in ((b"another", 0), (MARKER, later)):
            reply = memory.say(command, 0, marker, ready_at)
            assert reply.status == Status.NOT_READY, command.name
    assert memory.keyspace.strings == stored
    for command in commands:
        assert _said(master, command, now)[0] == Status.GRANTED, "at its time it is counted"
    del memory.keyspace.strings[master.deployment.marker]  # as FLUSHALL does
    for command in commands:
        assert _said(master, command)[0] == Status.NOT_READY, command.name


@kills("confirm goes down", "confirm",
       lua("math.max(tonumber(fence or 0), tonumber(ARGV[2 + index]))",
           "tonumber(ARGV[2 + index])"))  # fmt: skip
def test_a_confirmation_lowers_no_fence(master: Masters) -> None:
    _, _, fence = _said(master, _acquire(master))
    confirm = Confirm(**_common(master), fences=(fence - 1,))
    assert _said(master, confirm)[2] == fence
    assert master.fences() == [fence]


@kills("any client may mark", "join", lua("mode == 'join' or mode == 'distrust'", "false"))
def test_a_client_that_does_not_know_the_masters_marks_none(master: Masters) -> None:
    del master.memories[0].keyspace.strings[master.deployment.marker]
    for mode in ("join", "distrust"):
        join = Join(deployment=master.deployment, run_id="1" * 40, mode=mode)
        assert master.memories[0].ask(join).status == Status.UNMARKED
        assert master.memories[0].keyspace.get(master.deployment.marker) is None


@kills("every resource at fault is the first", "acquire",
       lua("now, index, left, stored", "now, 1, left, stored"))  # fmt: skip
def test_a_refusal_names_the_resource_at_fault(master: Masters) -> None:
    assert _said(master, _acquire(master, A, "s"))[0] == Status.GRANTED
    status, _, index, *_ = _said(master, _acquire(master, B, "r", "s"))
    assert (status, index) == (Status.REFUSED, 2)


@kills("a release without a clock ends no turn", "release",
       lua("if now == 0 and (has_waiters or left > 0) then",
           "if now == 0 and left > 0 then"))  # fmt: skip
def test_a_release_sees_that_a_turn_is_over(master: Masters) -> None:
    _said(master, _acquire(master))
    for token, waiter in ((B, "redlock:wake:b 1"), (C, "redlock:wake:c 2")):
        master.now += 0.01
        _said(master, _acquire(master, token, waiter=waiter))
    release = Release(**_common(master))
    _said(master, release)
    assert master.called == [(0, "redlock:wake:b 1")]
    master.now += 1.0
    _said(master, replace(release))
    assert master.called[1:] == [(0, "redlock:wake:c 2")]


def _slot(masters: Masters, token: str, resource: str = "r", waiter: str = "") -> Acquire:
    now = int(masters.now * 1_000_000)
    common = _common(masters, token, resource)
    return Acquire(**common, ttl=10.0, proposal=now, waiter=waiter, ticket=now, limit=2)


@kills("a waiter for a slot is refused as if it did not wait", "refuse",
       lua("has_waiters or waiter ~= ''", "has_waiters"))  # fmt: skip
def test_a_waiter_for_a_slot_stands_in_the_queue(master: Masters) -> None:
    for token, resource in ((A, "r"), (B, "r[1]")):
        assert _said(master, _slot(master, token, resource))[0] == Status.GRANTED
    waiting = _said(master, _slot(master, C, waiter="redlock:wake:c 1"))
    assert (waiting[0], master.queues()) == (Status.REFUSED, [["redlock:wake:c 1"]])


def test_a_lock_or_an_index_of_another_type_is_an_answer_and_sets_nothing(master: Masters) -> None:
    keyspace, keys = master.memories[0].keyspace, master.deployment
    keyspace.sets[keys.lock("r")] = {b"x": 1.0}
    assert _said(master, _acquire(master))[0] == Status.CORRUPT
    keyspace.drop(keys.held)
    keyspace.set(keys.held, b"x")
    assert _said(master, _acquire(master, A, "s"))[0] == Status.CORRUPT
    assert master.tokens("s") == [""]


def _replies_to_plain_commands(seed: int) -> list[Any]:
    """Return what a master answers to random commands, and what it has stored after each."""
    rng, masters = Random(seed), Masters(1)
    keys, keyspace = masters.deployment, masters.memories[0].keyspace
    found: list[Any] = []
    for _ in range(40):
        masters.now += rng.choice((0.000_001, 0.1, 70.0))
        key = rng.choice((keys.held, keys.lock("r"), keys.fence("r"), keys.queue("r")))
        match rng.randrange(8):
            case 0:
                keyspace.set(key, rng.choice((b"7", b"x", b"0x10", b"0" * 17, b"9" * 16)), 5_000)
            case 1:
                keyspace.drop(key)
                keyspace.sets[key] = {b"redlock:wake:b 1": 7.0}
            case 2:
                keyspace.drop(key)
        token, waiter = rng.choice((A, B)), rng.choice(("", "", "redlock:wake:a 1"))
        release = Release(**_common(masters, token), bury=rng.random() < 0.1)
        command = rng.choice((_acquire(masters, token, waiter=waiter), release))
        try:
            found.append(masters.memories[0].say(command, 0, MARKER))
        except ServerError as error:
            found.append(str(error))
        found.append((dict(keyspace.strings), {k: dict(v) for k, v in keyspace.sets.items()}))
    return found


def test_a_plain_command_does_what_the_rest_of_its_script_does() -> None:
    seeds = range(20)
    plain = [_replies_to_plain_commands(seed) for seed in seeds]
    with (
        script_mutated("acquire", lua("#KEYS == 6 and", "false and")),
        script_mutated("release", lua("#KEYS == 3 and", "false and")),
    ):
        assert [_replies_to_plain_commands(seed) for seed in seeds] == plain
    statuses = {each.status for one in plain for each in one if isinstance(each, Reply)}
    assert statuses >= {Status.GRANTED, Status.REFUSED, Status.RESERVED, Status.ABSENT}
    assert statuses >= {Status.BURIED, Status.CORRUPT, Status.FENCE_AHEAD}
