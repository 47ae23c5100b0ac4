"""Rules of the algorithm and of its scripts: events that break a promise unless one rule holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from redlock_django.backends.memory.commands import ServerError
from redlock_django.engine import fencing, quorum, renewal, rounds
from redlock_django.engine.attempt import Attempt
from redlock_django.engine.errors import LockLost, NotAcquired, ResourceLocked
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
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.renewal import next_extension
from redlock_django.engine.validity import LeaseState, RedlockLease
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.lock import lock
from redlock_django.locking.services import locks
from redlock_django.testing.override import memory_masters
from tests.engine.lua_mutation import lua, script_mutated
from tests.engine.masters import MARKER, START, Masters, asked
from tests.engine.mutants import kills
from tests.engine.mutation import always, argument, at_start, instead, never, returns

HOUR = 3600.0
RUNS = ("1" * 40, "2" * 40)


def _denied(masters: Masters, **how: Any) -> NotAcquired:
    """Try to acquire; return the refusal. Raise AssertionError if the lock is acquired."""
    where = {name: how.pop(name) for name in ("deaf", "mute", "down") if name in how}
    try:
        lease = masters.run(masters.acquire(**how), **where)
    except NotAcquired as error:
        return error
    raise AssertionError(f"held although it must not be, with {lease.fences}")


A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def _common(masters: Masters, token: str = A, *resources: str) -> dict[str, Any]:
    chosen = resources or ("r",)
    return {"deployment": masters.deployment, "resources": chosen, "value": f"{token} {{}}"}


# Who has won.


@kills("quorum of half", quorum.quorum, returns("max(1, masters // 2)"))
@kills("quorum of those that are up", Tally._judge,
       at_start("self.need = quorum(self.masters - self.failed)"))  # fmt: skip
def test_two_halves_do_not_both_hold() -> None:
    masters = Masters(4)
    _denied(masters, down=(2, 3))
    _denied(masters, down=(0, 1))


@kills("any clock votes", Tally._near, always("abs(...) <= self.skew"))
def test_a_master_whose_clock_ran_ahead_makes_no_second_holder(masters: Masters) -> None:
    masters.run(masters.acquire(ttl=1.0), down=(0,))
    masters.off[2] = 1.2  # the lock is gone there; its fence is not too far ahead
    _denied(masters, deaf=(1,))


@kills("rivals are not distinguished", Attempt.__init__, argument(Tally, rivals="False"))
def test_a_proven_holder_ends_the_round() -> None:
    masters = Masters(5)
    protocol = masters.acquire()
    first = asked(next(protocol))
    said = []
    for index, rival in ((0, b"A"), (1, b"A"), (3, b"B"), (2, b"A")):
        vote = Vote(Ballot.REFUSED, "held", None, (5,), 900, rival)
        said.append(first.tally.cast(index, vote))
    assert said == [Verdict.PENDING] * 3 + [Verdict.LOST], "three votes prove no holder yet"
    with pytest.raises(ResourceLocked):
        protocol.send(masters.now)


# For how long.


@kills("renewed beyond the hold", renewal.next_extension, instead("min(ttl, ...)", "ttl"))
def test_no_extension_reaches_beyond_the_hold() -> None:
    lease = Masters(3).taken(ttl=10.0)
    plan = next_extension(lease, lease.started + 1, ttl=10.0, hold_until=lease.started + 11.0)
    assert plan is not None
    assert plan[0] + plan[1] - lease.started == pytest.approx(11.0)


@kills("an extension shortens", "extend",
       lua("if redis.call('PTTL', KEYS[2 + index]) < ttl then", "if true then"))  # fmt: skip
def test_an_unanswered_extension_shortens_nothing(masters: Masters) -> None:
    lease = masters.taken(ttl=10.0)
    assert masters.run(masters.extend(lease, 2.0), mute=(0, 1, 2))[0] is LeaseState.UNKNOWN
    masters.now += 5.0
    assert masters.now < lease.until
    _denied(masters)


# What a master checks.


def _join(
    masters: Masters, run: str, fingerprint: str = "", how: str = "join"
) -> tuple[int, bytes]:
    """Return the status of the reply, and the marker."""
    query = Join(
        deployment=masters.deployment, run_id=run, mode=how, fingerprint=fingerprint or None
    )
    reply = masters.memories[0].ask(query)
    return reply.status, reply.rest


@kills("a restart goes unnoticed", "join", lua("was ~= run", "false"))
@kills("no quarantine", "join", lua("or now + delay", "or now"))
def test_a_restarted_master_waits_for_its_time(master: Masters) -> None:
    _join(master, RUNS[0], how="trust")
    master.now += HOUR
    assert _join(master, RUNS[0])[0] == Status.KNOWN
    ready_at = int(_join(master, RUNS[1])[1].split()[1])
    assert ready_at >= (master.now + master.deployment.restart_delay) * 1e6 - 1


@kills("any deployment may write", "join", lua("other ~= print and mode ~= 'reconfigure'", "false"))
def test_another_deployment_is_refused(masters: Masters) -> None:
    _join(masters, RUNS[0], how="trust")
    other = Masters(5).deployment.fingerprint
    assert _join(masters, RUNS[0], other)[0] == Status.MISMATCH
    assert _join(masters, RUNS[0])[0] == Status.KNOWN, "the refused join changed nothing"


@kills("ready-at has no limit", "join", lua(" and tonumber(at) <= now + delay"))
def test_a_ready_at_from_a_clock_gone_back_is_cut(master: Masters) -> None:
    _join(master, RUNS[0], how="trust")
    master.now -= HOUR
    ready_at = int(_join(master, RUNS[0])[1].split()[1])
    assert ready_at <= (master.now + master.deployment.restart_delay) * 1e6 + 1


@kills("an overlong lock stays", "acquire", lua("lasts > MAX_TTL and", "false and"))
def test_a_lock_from_a_clock_gone_back_is_cut(master: Masters) -> None:
    master.taken()
    del master.memories[0].keyspace.strings[
        master.deployment.fence("r")
    ]  # it is ahead of the clock, too
    master.now -= HOUR
    assert _denied(master).retry_after == pytest.approx(master.deployment.max_ttl)
    master.now += master.deployment.max_ttl + 0.1
    master.taken()


@kills("foreign locks are cut", "acquire", lua("lasts > MAX_TTL and is_known", "lasts > MAX_TTL"))
def test_a_foreign_lock_is_never_cut(master: Masters) -> None:
    master.memories[0].keyspace.set(master.deployment.lock("r"), b"foreign", 2 * HOUR * 1000)
    _denied(master)
    master.now += HOUR
    _denied(master)


@kills("a resend is a new grant", "acquire", lua("if not (lock and fence) then", "if true then"))
def test_the_same_acquire_twice_is_one_grant(master: Masters) -> None:
    ask = master.ask()
    first = master.vote(ask)
    again = master.vote(ask)
    assert first.ballot is again.ballot is Ballot.GRANTED
    assert first.fences == again.fences


@kills("compare the token only", "acquire",
       lua("if lock ~= value then",
           "if (lock or ''):sub(1, 32) ~= value:sub(1, 32) then"))  # fmt: skip
@kills("free by the token only", "release",
       lua("not lock or lock == value and left == 0",
           "not lock or lock:sub(1, 32) == value:sub(1, 32) and left == 0"))  # fmt: skip
def test_a_value_that_only_begins_with_our_token_is_not_ours(master: Masters) -> None:
    other = b"a" * 32 + b" of another client"
    master.memories[0].keyspace.set(master.deployment.lock("r"), other, 5000)
    ask = master.ask()
    assert master.vote(ask).ballot is Ballot.REFUSED
    free = Release(deployment=master.deployment, resources=("r",), value=ask.value)
    master.vote(free)
    assert master.memories[0].keyspace.get(master.deployment.lock("r")) == other


@kills("acquire overwrites", "acquire", lua("if lock ~= value then", "if not lock then"))
@kills(
    "a plain acquire overwrites",
    "acquire",
    lua(
        "and not seen[4]",
        "",
        (
            "redis.call('SET', KEYS[4], value, 'NX', 'PX', ttl)",
            "redis.call('SET', KEYS[4], value, 'PX', ttl)",
        ),
    ),
)
@kills("a plain release deletes any lock", "release",
       lua("and redis.pcall('GET', KEYS[2]) == value"))  # fmt: skip
@kills("plain DEL", "release",
       lua("not lock or lock == value and left == 0",
           "not (lock == value and left > 0)"))  # fmt: skip
def test_a_late_release_frees_no_other_holder(masters: Masters) -> None:
    slow = masters.taken(ttl=1.0)
    masters.now += 1.1
    other = masters.taken()
    masters.run(masters.release(slow))
    assert masters.tokens() == [other.token] * 3
    _denied(masters)


@kills("heal ignores tombstones", "heal", lua("if seen[3] then", "if false then"))
def test_a_heal_never_brings_back_what_was_released(master: Masters) -> None:
    lease = master.taken()
    master.run(master.release(lease, bury=True))
    late = _heal(master, lease)
    master.vote(late)
    assert master.tokens() == [""]


def _heal(masters: Masters, lease: RedlockLease, ahead: int = 0) -> Heal:
    fences = tuple(fence + ahead for fence in lease.fences)
    return Heal(
        deployment=masters.deployment,
        resources=lease.resources,
        value=lease.value,
        ttl=5,
        fences=fences,
    )


def test_a_resource_that_is_taken_frees_the_others(masters: Masters) -> None:
    masters.taken("s")
    with pytest.raises(ResourceLocked):
        masters.run(masters.acquire("r", "s"))
    assert masters.tokens("r") == [""] * 3


# Fences.


@kills("fences from the counter alone", "acquire",
       lua("math.max(stored + 1, proposal)", "stored + 1",
           ("math.max(fence + 1, proposal)", "fence + 1")))  # fmt: skip
@kills("no clamp below", "acquire",
       lua("math.min(math.max(proposed, now - SKEW), now + SKEW)",
           "math.min(proposed, now + SKEW)"))  # fmt: skip
def test_fences_grow_after_all_masters_lost_their_memory(masters: Masters) -> None:
    """All stored fences are gone, and the client's clock is an hour slow."""
    first = masters.taken().fences[0]
    masters.now += 2 * masters.deployment.max_ttl
    for index in range(3):
        masters.forget(index)
    assert masters.taken(wall=-HOUR).fences[0] > first


def _poisoned(masters: Masters, *indexes: int) -> None:
    ahead = int((masters.now + 10) * 1e6)
    for index in indexes:
        masters.memories[index].keyspace.set(masters.deployment.fence("r"), b"%d" % ahead)


@kills("acquire counts a poisoned fence", "acquire",
       lua("> now + 2 *", "> 9e99 + now + 2 *", ("<= now + 2 * SKEW", "<= 9e99")))  # fmt: skip
def test_a_fence_far_ahead_of_its_clock_is_not_counted(master: Masters) -> None:
    _poisoned(master, 0)
    _denied(master)


@kills("confirm stores a poisoned fence", "confirm", lua("> now + 2 *", "> 9e99 + now + 2 *"))
def test_no_confirmation_stores_a_fence_far_ahead(master: Masters) -> None:
    lease = master.taken()
    confirm = Confirm(
        deployment=master.deployment, resources=("r",), value=lease.value,
        fences=(lease.fences[0] + 10_000_000,),
    )  # fmt: skip
    assert master.vote(confirm).ballot is Ballot.FAILED
    assert master.fences() == list(lease.fences)


@kills("heal stores a poisoned fence", "heal", lua("> now + 2 *", "> 9e99 + now + 2 *"))
def test_no_heal_stores_a_fence_far_ahead(master: Masters) -> None:
    lease = master.taken()
    master.forget(0)
    heal = _heal(master, lease, ahead=10_000_000)
    master.vote(heal)
    assert master.fences() == [0]


@kills("any string is a fence", "acquire",
       lua("if fence and not (fence:find('^%d+$') and #fence <= 16)",
           "if fence and not tonumber(fence)",
           ("fence:find('^%d+$') and #fence <= 16 and", "tonumber(fence) and")))  # fmt: skip
def test_a_fence_that_is_not_a_number_is_not_counted(master: Masters) -> None:
    master.memories[0].keyspace.set(master.deployment.fence("r"), b"9" * 17)
    assert "is not a number" in str(_denied(master))


@kills(
    "one master confirms for all",
    fencing.stored_by_majority,
    instead("tally.majority(...)", "any(numbers[index] >= fence for numbers in stored)"),
)
@kills("no confirm round", Attempt.judge, instead("stored_by_majority(...)", "True"))
def test_a_fence_of_a_crashed_writer_is_written_to_a_majority(masters: Masters) -> None:
    masters.memories[2].keyspace.set(
        masters.deployment.fence("r"), b"%d" % int((START + 0.3) * 1e6)
    )
    first = masters.run(masters.acquire(), deaf=(1,))
    masters.run(masters.release(first))
    second = masters.run(masters.acquire(), down=(2,))
    assert second.fences[0] > first.fences[0], "the fence went back"


# Extensions and healing.


@kills("any clock extends", rounds.extend, argument(Tally, skew="None"))
def test_an_extension_counts_no_clock_off_the_median(masters: Masters) -> None:
    lease = masters.taken()
    masters.off[2] = 1.2
    assert masters.run(masters.extend(lease, 10.0), deaf=(1,))[0] is not LeaseState.RENEWED


@kills("what an overlapped extension healed is forgotten", rounds.merged,
       instead("held.reached | extended.reached | healed", "later.reached | healed"))  # fmt: skip
@kills("what an overlapped extension is healing is forgotten", rounds.merged,
       instead("held.tally.forgot | extended.tally.forgot", "frozenset()"))  # fmt: skip
@kills("the earlier deadline counts", rounds.merged,
       instead("extended if ... else held", "extended"))  # fmt: skip
def test_a_release_reaches_what_an_overlapped_extension_healed(masters: Masters) -> None:
    """Two extensions overlap, and the one that healed a master has the earlier deadline."""
    lease = masters.run(masters.acquire(), down=(2,))

    def extended(base: RedlockLease, ttl: float, **how: Collection[int]) -> RedlockLease:
        return masters.run(masters.extend(base, ttl), **how)[1]

    later = extended(lease, 10.0, deaf=(2,))
    absent = extended(lease, 9.0)
    healing = extended(absent, 8.0)
    assert masters.memories[2].keyspace.get(masters.deployment.lock("r"))
    for results in ((absent, healing, later), (later, healing), (later, absent)):
        held = lease
        for result in results:
            held = rounds.merged(held, result)
        assert held.until == later.until
        assert held.reached == {0, 1, 2}
    assert masters.run(masters.release(held))
    assert not masters.memories[2].keyspace.get(masters.deployment.lock("r"))


@kills("a child holds its parent's lock", HeldLease.inherited, never("self.forks != locks.forks"))
def test_a_child_does_not_hold_what_its_parent_holds() -> None:
    with memory_masters() as masters:
        held = lock("order:1")
        with held:
            locks.forks += 1  # as in a child process after fork
            try:
                with pytest.raises(LockLost, match="belongs to the parent"):
                    held.extend()
                assert held.release() is not True
                assert len(masters.masters[0].keyspace.strings) > 1, (
                    "the parent's key is still there"
                )
            finally:
                locks.forks -= 1


# What no round and no seed shows: what a master replies to one command.


@kills("any marker will do", "trusted", lua("seen[1] ~= ARGV[#ARGV - 1] or"))
@kills("ready before its time", "trusted", lua(" or now < tonumber(ARGV[#ARGV])"))
def test_no_script_counts_a_master_without_its_marker_or_before_its_time(master: Masters) -> None:
    memory, now = master.memories[0], int(master.now * 1_000_000)
    fence = int(master.say(master.ask())[2])
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
        assert master.say(command, now)[0] == Status.GRANTED, "at its time it is counted"
    del memory.keyspace.strings[master.deployment.marker]  # as FLUSHALL does
    for command in commands:
        assert master.say(command)[0] == Status.NOT_READY, command.name


@kills("confirm goes down", "confirm",
       lua("math.max(tonumber(fence or 0), tonumber(ARGV[2 + index]))",
           "tonumber(ARGV[2 + index])"))  # fmt: skip
def test_a_confirmation_lowers_no_fence(master: Masters) -> None:
    _, _, fence = master.say(master.ask())
    confirm = Confirm(**_common(master), fences=(fence - 1,))
    assert master.say(confirm)[2] == fence
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
    assert master.say(master.ask(A, "s"))[0] == Status.GRANTED
    status, _, index, *_, holder = master.say(master.ask(B, "r", "s"))
    assert (status, index, holder) == (Status.REFUSED, 2, A.encode())


@kills("a release without a clock ends no turn", "release",
       lua("if now == 0 and (has_waiters or left > 0) then",
           "if now == 0 and left > 0 then"))  # fmt: skip
def test_a_release_sees_that_a_turn_is_over(master: Masters) -> None:
    master.say(master.ask())
    for token, waiter in ((B, "redlock:wake:b 1"), (C, "redlock:wake:c 2")):
        master.now += 0.01
        master.say(master.ask(token, waiter=waiter))
    release = Release(**_common(master))
    master.say(release)
    assert master.called == [(0, "redlock:wake:b 1")]
    master.now += 1.0
    master.say(replace(release))
    assert master.called[1:] == [(0, "redlock:wake:c 2")]


@kills("a waiter for a slot is refused as if it did not wait", "refuse",
       lua("has_waiters or waiter ~= ''", "has_waiters"))  # fmt: skip
def test_a_waiter_for_a_slot_stands_in_the_queue(master: Masters) -> None:
    for token, resource in ((A, "r"), (B, "r[1]")):
        assert master.say(master.ask(token, resource, limit=2))[0] == Status.GRANTED
    waiting = master.say(master.ask(C, waiter="redlock:wake:c 1", limit=2))
    assert (waiting[0], master.queues()) == (Status.REFUSED, [["redlock:wake:c 1"]])


def test_a_lock_or_an_index_of_another_type_is_an_answer_and_sets_nothing(master: Masters) -> None:
    keyspace, keys = master.memories[0].keyspace, master.deployment
    keyspace.sets[keys.lock("r")] = {b"x": 1.0}
    assert master.say(master.ask())[0] == Status.CORRUPT
    keyspace.drop(keys.held)
    keyspace.set(keys.held, b"x")
    assert master.say(master.ask(A, "s"))[0] == Status.CORRUPT
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
        command = rng.choice((masters.ask(token, waiter=waiter), release))
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
