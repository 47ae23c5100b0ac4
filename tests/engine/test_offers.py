"""Offers of waiters, driven step by step: a release grants the lock to the next waiter."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest

from redlock_django.engine import rounds
from redlock_django.engine.protocol.commands import Acquire, Confirm, Release
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import WON
from redlock_django.engine.steps import Offer, Pause, Protocol, Round, Step, proof_of_grant
from redlock_django.engine.validity import RedlockLease, valid_until
from redlock_django.wire.link.link import Exchange, Kind, Owed, wake_none
from redlock_django.wire.links.waiter import PARTIAL
from redlock_django.wire.links.waiters import Waiters
from tests.engine.masters import MARKER, START, Masters
from tests.engine.test_index import listed
from tests.engine.test_queue import Cancelled, free, free_silently
from tests.engine.world import Packed


class Offering:
    """A waiter of a process of its own, after one refused round, in the pause after it."""

    def __init__(self, masters: Masters, process: str = "a", *resources: str, **how: Any) -> None:
        self.masters = masters
        self.process = Waiters(masters.deployment, process, lambda: masters.now)
        for master in range(masters.deployment.masters):
            self.process.listen(master)
        self.waiter = self.process.new()
        where = {name: how.pop(name) for name in ("down", "mute", "silent") if name in how}
        self.protocol: Protocol[RedlockLease] = masters.acquire(
            *resources, wait=how.pop("wait", 60.0), waiter=self.waiter.name, **how
        )
        self.asked = self._round(next(self.protocol))
        self.rests(**where)

    def _round(self, step: Step) -> Round:
        assert isinstance(step, Round)
        return step

    def rests(self, **how: Collection[int]) -> None:
        """Carry out the round, which is lost, and begin the pause after it."""
        self.masters.hear(self.asked, **how)
        pause = self.masters.after_undo(self.protocol)
        assert isinstance(pause, Pause)
        self.pause = pause
        self.waiter.rest(pause)
        self.masters.now += 0.001  # so that no two tickets are the same

    @property
    def token(self) -> str:
        """The token of its last round."""
        command = self.asked.commands[0]
        assert isinstance(command, Acquire)
        return command.token

    def hears(self, *froms: int, believed: bool = True) -> bool:
        """Receive what these masters (none: all) have published; return whether its pause ends."""
        kept, self.masters.called = self.masters.called, []
        for master, message in kept:
            if message.startswith(self.waiter.name) and (master in froms or not froms):
                believes = partial(_believes if believed else _doubts, master)
                self.process.call(message.encode(), master, believes)
            else:
                self.masters.called.append((master, message))
        return self.waiter.decided

    def asks(self) -> None:
        """Begin the next round, as after a call or a pause."""
        self.asked = self._round(self.masters.after_undo(self.protocol))
        assert not self.waiter.takes_verdict(self.asked), "it was granted in the pause"
        self.waiter.ask()

    def ends(self) -> Step | RedlockLease:
        """End a pause in which enough masters have granted the lock; return the lease or step."""
        granted = self._round(self.protocol.send(self.masters.now))
        assert self.waiter.takes_verdict(granted), "no round is sent"
        try:
            return self.protocol.send(self.masters.now)
        except StopIteration as done:
            lease: RedlockLease = done.value
            return lease

    def holds(self) -> RedlockLease:
        """End a pause in which enough masters have granted the lock; return the lease."""
        lease = self.ends()
        assert isinstance(lease, RedlockLease)
        return lease

    def wins(self, **how: Collection[int]) -> RedlockLease:
        """Begin the next round, which wins; return the lease."""
        self.asks()
        self.masters.hear(self.asked, **how)
        with pytest.raises(StopIteration) as done:
            self.protocol.send(self.masters.now)
        lease: RedlockLease = done.value.value
        return lease


def _believes(master: int, proof: bytes, time: float, offer: Offer) -> bool:
    return offer.is_from(master, MARKER, proof)


def _doubts(master: int, proof: bytes, time: float, offer: Offer) -> bool:
    return False


def _granting(masters: Masters) -> list[int]:
    """Return which masters have published that they have granted the lock."""
    return [index for index, message in masters.called if "=" in message]


def _calling(masters: Masters) -> list[int]:
    """Return which masters have called a waiter."""
    return [index for index, message in masters.called if "=" not in message]


def _granted(lease: RedlockLease) -> list[int]:
    """Return which masters are counted as having granted a lease."""
    votes = enumerate(lease.tally.votes)
    return [index for index, vote in votes if vote and vote.ballot is Ballot.GRANTED]


def _proof(token: str, marker: bytes = MARKER) -> bytes:
    return proof_of_grant(token.encode(), marker)


# What a release grants.


def test_a_release_grants_the_lock_to_the_first_waiter_on_every_master() -> None:
    masters = Masters(3)
    lease = masters.taken()
    first, second = Offering(masters, "a"), Offering(masters, "b")
    free(masters, lease)
    assert masters.tokens() == [first.token] * 3
    assert _granting(masters) == [0, 1, 2]
    assert [*_calling(masters), *masters.watching] == [], "no turn begins"
    assert masters.queues() == [[second.waiter.name]] * 3
    assert not first.hears(0)
    assert first.hears(2), "the pause ends with the second of three"
    held = first.holds()
    assert held.token == first.token
    assert held.waiter == first.waiter.name
    assert held.fences[0] > lease.fences[0]
    assert masters.fences() == [held.fences[0]] * 3
    assert listed(masters) == {b"r"}
    free(masters, held)
    assert masters.tokens() == [second.token] * 3
    second.hears()
    assert second.holds().fences[0] > held.fences[0]
    assert masters.queues() == [[]] * 3


def test_a_lock_that_was_granted_is_valid_from_the_start_of_its_attempt() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    began = masters.now - 0.001
    masters.now += 0.9
    free(masters, lease)
    masters.now += 0.2
    waiting.hears()
    held = waiting.holds()
    assert (held.started, held.until) == (began, valid_until(10.0, began))
    lasts = masters.memories[0].keyspace.pttl(masters.deployment.lock("r")) / 1000
    assert held.until < began + 10.0 < masters.now + lasts


def test_a_lock_whose_validity_is_over_when_its_grants_come_is_released() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, ttl=1.0)
    masters.now += 0.05
    free(masters, lease)
    masters.now += 1.0
    waiting.hears()
    undo = waiting.ends()
    assert isinstance(undo, Round)
    masters.hear(undo)
    assert masters.tokens() == [""] * 3


def test_the_fence_of_a_grant_grows_whatever_the_waiters_clock_says() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, wall=-3600.0)
    free(masters, lease)
    waiting.hears()
    assert waiting.holds().fences == (lease.fences[0] + 1,)


def test_a_fence_that_only_a_minority_has_is_confirmed() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    ahead = int((masters.now + 0.3) * 1e6)
    masters.memories[2].keyspace.set(masters.deployment.fence("r"), b"%d" % ahead)
    free(masters, lease)
    waiting.hears(1, 2)
    confirm = waiting.ends()
    assert isinstance(confirm, Round)
    assert isinstance(confirm.commands[0], Confirm)
    held = masters.carry(waiting.protocol, confirm)
    assert held.fences == (ahead + 1,)
    assert masters.fences() == [ahead + 1] * 3


def test_a_minority_that_has_granted_the_lock_is_not_enough() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    free(masters, lease, deaf=(1, 2))
    assert not waiting.hears()
    assert waiting.waiter.until == masters.now + PARTIAL
    free(masters, lease, deaf=(0, 2))
    assert waiting.hears(), "the release of another master has come later"
    assert _granted(waiting.holds()) == [0, 1]


def test_the_next_attempt_replaces_what_a_release_has_set_for_the_one_before() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting, other = Offering(masters, "a"), Offering(masters, "b")
    free(masters, lease, deaf=(1, 2))
    before, fence = waiting.token, masters.fences()[0]
    masters.now += PARTIAL
    free(masters, lease, deaf=(0, 1))
    other.asks()
    masters.hear(other.asked)
    assert masters.tokens() == [before, lease.token, before], "no other waiter replaces it"
    held = waiting.wins()
    assert masters.tokens() == [held.token, lease.token, held.token]
    assert held.token != before
    assert held.fences[0] > fence
    assert masters.memories[0].keyspace.pttl(masters.deployment.lock("r")) == 10_000


def test_waiters_that_different_masters_have_granted_the_lock_do_not_block_each_other() -> None:
    masters = Masters(5)
    lease = masters.taken()
    first = Offering(masters, "a", down=(3, 4))
    second = Offering(masters, "b")
    free(masters, lease, deaf=(2,))
    assert masters.tokens() == [first.token] * 2 + [lease.token] + [second.token] * 2
    assert not first.hears()
    assert not second.hears()
    masters.now += PARTIAL
    first.asks()
    first.rests()
    assert first.pause.seconds < 0.1
    assert masters.tokens() == ["", "", lease.token] + [second.token] * 2, "it is undone"
    held = second.wins()
    assert masters.tokens() == [held.token] * 2 + [lease.token] + [held.token] * 2
    first.asks()
    first.rests()
    free(masters, held)
    assert masters.tokens() == [first.token] * 2 + [lease.token] + [first.token] * 2
    assert first.hears()
    first.holds()


# What it does not grant.


def too_old(masters: Masters, waiting: Offering) -> None:
    masters.now += 1.0


def too_old_for_its_ttl(masters: Masters, waiting: Offering) -> None:
    masters.now += 0.05  # of 0.5 s


def of_another_marker(masters: Masters, waiting: Offering) -> None:
    for memory in masters.memories:
        memory.keyspace.set(masters.deployment.marker, b"another")


def buried(masters: Masters, waiting: Offering) -> None:
    for memory in masters.memories:
        memory.keyspace.set(masters.deployment.tomb(waiting.token), b"1")


def beside_a_corrupt_fence(masters: Masters, waiting: Offering) -> None:
    for memory, fence in zip(masters.memories, (b"0x10", b"9" * 17, b"-1"), strict=True):
        memory.keyspace.set(masters.deployment.fence("r"), fence)


def beside_a_fence_far_ahead(masters: Masters, waiting: Offering) -> None:
    for memory in masters.memories:
        ahead = int((masters.now + 1.1) * 1e6)
        memory.keyspace.set(masters.deployment.fence("r"), b"%d" % ahead)


def of_a_clock_that_went_back(masters: Masters, waiting: Offering) -> None:
    masters.off = [-0.3] * 3


def of_a_key_of_another_type(masters: Masters, waiting: Offering) -> None:
    for memory in masters.memories:
        memory.keyspace.hashes.clear()
        memory.keyspace.set(masters.deployment.offers("r"), b"of another type")


@pytest.mark.parametrize(
    "void",
    [
        too_old, too_old_for_its_ttl, of_another_marker, buried, beside_a_corrupt_fence,
        beside_a_fence_far_ahead, of_a_clock_that_went_back, of_a_key_of_another_type,
    ],
)  # fmt: skip
def test_an_offer_is_not_granted(void: Callable[[Masters, Offering], None]) -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, ttl=0.5 if void is too_old_for_its_ttl else 10.0)
    void(masters, waiting)
    free(masters, lease)
    assert _calling(masters) == [0, 1, 2], "the waiter is called"
    assert _granting(masters) == []
    assert masters.tokens() == [""] * 3
    assert waiting.hears()


def test_an_offer_lasts_for_a_tenth_of_its_ttl_and_at_most_a_second() -> None:
    for ttl, lasts in ((0.5, 0.05), (60.0, 1.0)):
        masters = Masters(1)
        lease = masters.taken()
        waiting = Offering(masters, ttl=ttl)
        masters.now += lasts - 0.0011
        free(masters, lease)
        assert masters.tokens() == [waiting.token]


def test_a_waiter_whose_process_is_gone_is_granted_nothing() -> None:
    masters = Masters(3)
    lease = masters.taken()
    Offering(masters, "a")
    third = Offering(masters, "b")
    masters.gone = {masters.deployment.wake("a")}
    free(masters, lease)
    assert masters.tokens() == [third.token] * 3
    assert masters.queues() == [[]] * 3
    third.hears()
    assert third.holds().fences[0] == masters.fences()[0]


def test_a_late_waiter_is_called_and_not_granted_the_lock() -> None:
    masters = Masters(1)
    lease = masters.taken()
    waiting = Offering(masters)
    queue = masters.memories[0].keyspace.sorted_set(masters.deployment.queue("r"))
    queue[waiting.waiter.name.encode()] = 4e15 + masters.now * 1e6
    free(masters, lease)
    assert _calling(masters) == [0]
    assert masters.tokens() == [""]


def test_a_lock_with_a_minimum_hold_is_not_granted_before_its_end() -> None:
    masters = Masters(3)
    lease = masters.taken()
    Offering(masters)
    masters.run(rounds.release(masters.deployment, lease, held_for=4.0))
    assert masters.tokens() == [lease.token] * 3
    assert masters.called == []


def test_a_release_that_is_followed_grants_nothing() -> None:
    masters = Masters(3)
    lease = masters.taken()
    Offering(masters)
    free_silently(masters, lease)
    assert masters.tokens() == [""] * 3
    assert masters.called == []


def test_an_undo_before_the_next_attempt_grants_nothing() -> None:
    masters = Masters(3)
    protocol = masters.acquire(wait=60.0, waiter=f"{masters.deployment.wake('a')} 1")
    asked = next(protocol)
    assert isinstance(asked, Round)
    masters.hear(asked, down=(1, 2))
    undo = protocol.send(masters.now)
    assert isinstance(undo, Round)
    keyspace = masters.memories[0].keyspace
    waiting = Offering(masters, "b", mute=(1, 2))
    assert keyspace.hash(masters.deployment.offers("r")).keys() == {waiting.waiter.name.encode()}
    release = undo.commands[0]
    assert isinstance(release, Release)
    masters.memories[0].say(_without_calls(release), 0)
    assert masters.tokens()[0] == ""


def _without_calls(release: Release) -> Release:
    return Release(
        deployment=release.deployment, resources=release.resources, value=release.value,
        calls=False,
    )  # fmt: skip


def test_a_release_never_sets_again_what_it_releases() -> None:
    """An acquire that a hung master refuses late is released there, with a tombstone or without."""
    for bury in (False, True):
        masters = Masters(1)
        lease = masters.taken(ttl=1.0)
        masters.now += 0.99
        waiting = Offering(masters)
        masters.now = lease.started + 1.01
        masters.memories[0].say(_release_of(waiting, bury=bury), 0)
        assert masters.tokens() == [""]
        assert _calling(masters) == [0]


def _release_of(waiting: Offering, *, bury: bool) -> Release:
    command = waiting.asked.commands[0]
    assert isinstance(command, Acquire)
    return Release(command.deployment, command.resources, command.value, bury=bury)


def test_waiters_for_several_locks_or_a_slot_make_no_offers() -> None:
    masters = Masters(3)
    held = [masters.taken("s"), masters.taken("t", limit=2), masters.taken("t", limit=2)]
    several = Offering(masters, "a", "r", "s")
    slot = Offering(masters, "b", "t", limit=2)
    for waiting, lease in ((several, held[0]), (slot, held[1])):
        assert waiting.pause.offer is None
        free(masters, lease)
        assert _calling(masters) == [0, 1, 2]
        assert masters.tokens(lease.resources[0]) == [""] * 3
    assert not any(memory.keyspace.hashes for memory in masters.memories)


def test_releases_and_waiters_of_the_version_before_make_and_grant_no_offers() -> None:
    masters = Masters(1)
    lease, keyspace = masters.taken(), masters.memories[0].keyspace
    new = Offering(masters, "new")
    release = Release(deployment=masters.deployment, resources=("r",), value=lease.value)
    words = Packed(release, offers=False)
    masters.memories[0].run("release", words.keys, [b"0", *words.argv])
    assert _calling(masters) == [0], "an earlier release calls a waiter with an offer"
    lease = new.wins()
    asked = next(masters.acquire(waiter=f"{masters.deployment.wake('old')} 1", wait=1.0))
    assert isinstance(asked, Round)
    assert asked.commands[0] is not None
    words = Packed(asked.commands[0], offers=False)
    masters.memories[0].run("acquire", words.keys, [b"0", *words.argv, MARKER, b"0"])
    assert not keyspace.hashes
    free(masters, lease)
    assert _calling(masters) == [0], "a release calls a waiter of the version before"


# Which grants are counted.


def _offer(waiting: Offering) -> Offer:
    assert waiting.pause.offer is not None
    return waiting.pause.offer


def test_a_master_counts_whose_refusal_comes_late() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, silent=(2,))
    offer, ours = _offer(waiting), _proof(waiting.token)
    assert [offer.is_from(master, MARKER, ours) for master in range(3)] == [True, True, False]
    masters.hear_at(waiting.asked, 2)
    assert offer.is_from(2, MARKER, ours)
    assert not offer.is_from(2, b"another", ours), "it was published on another master"
    free(masters, lease, deaf=(0,))
    assert waiting.hears()
    assert _granted(waiting.holds()) == [1, 2]


def test_a_master_does_not_count_whose_reply_was_lost() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, silent=(2,))
    masters.memories[2].say(waiting.asked.commands[2], 0, MARKER)  # type: ignore[arg-type]
    free(masters, lease, deaf=(0,))
    assert masters.tokens()[1:] == [waiting.token] * 2
    masters.hear(waiting.asked, silent=(0, 1), mute=(2,))
    waiting.hears()
    assert waiting.waiter.sent is None, "a release of that token may be on its way to it"
    waiting.asks()
    masters.hear(waiting.asked, deaf=(0,))
    assert masters.tokens()[1:] == [waiting.token] * 2


def test_what_a_master_grants_to_a_held_attempt_is_not_released() -> None:
    """An extension that was sent to that master may have counted it."""
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, silent=(2,))
    sent = Owed(Kind.COMMAND, 0.0, Exchange(waiting.asked, 1, wake_none), waiting.asked.commands[2])
    assert sent.late_undo is not None
    free(masters, lease)
    waiting.hears(0)
    assert sent.late_undo is not None
    waiting.hears(1)
    lease = waiting.holds()
    masters.hear_at(waiting.asked, 2)
    assert [sent.late_undo] == [None]
    assert waiting.asked.tally.verdict is WON, "so the links do not look for one"
    assert masters.tokens() == [waiting.token] * 3
    free(masters, lease)
    assert masters.tokens() == [""] * 3


def test_an_attempt_from_which_something_was_undone_is_not_open() -> None:
    masters = Masters(3)
    masters.taken()
    assert Offering(masters, "a").pause.offer is not None
    assert Offering(masters, "b", mute=(2,)).pause.offer is None
    assert Offering(masters, "c", down=(2,)).pause.offer is not None


def test_an_attempt_that_no_majority_has_queued_is_not_open() -> None:
    masters = Masters(3)
    masters.taken()
    for memory in masters.memories[:2]:
        memory.keyspace.set(masters.deployment.queue("r"), b"of another type")
    assert Offering(masters).pause.offer is None


def test_a_message_of_another_token_is_a_call() -> None:
    masters = Masters(3)
    masters.taken()
    waiting = Offering(masters)
    for master in range(3):
        message = b"%s=%s %d 5" % (waiting.waiter.name.encode(), _proof("f" * 32), START * 1e6)
        assert waiting.process.call(message, master, partial(_believes, master))
    assert waiting.waiter.sent is None
    assert waiting.waiter.until == masters.now, "it asks again"
    waiting.asks()


def test_a_grant_of_a_master_that_may_not_vote_is_a_call() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    free(masters, lease)
    waiting.hears(believed=False)
    assert waiting.waiter.sent is None
    assert waiting.waiter.until == masters.now, "it asks again"
    held = waiting.wins()
    assert masters.tokens() == [held.token] * 3


def test_grants_and_calls_of_a_majority_make_the_waiter_ask_again() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    masters.memories[0].keyspace.hashes.clear()
    free(masters, lease, deaf=(2,))
    assert (_calling(masters), _granting(masters)) == ([0], [1])
    waiting.hears()
    assert waiting.waiter.until == masters.now
    held = waiting.wins(deaf=(2,))
    assert masters.tokens() == [held.token] * 2 + [lease.token]


# What is left.


def test_an_interrupt_releases_what_was_granted_and_grants_it_to_the_next_waiter() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting, other = Offering(masters, "a"), Offering(masters, "b")
    free(masters, lease)
    leave = waiting.protocol.throw(Cancelled())
    assert isinstance(leave, Round)
    masters.hear(leave)
    assert masters.tokens() == [other.token] * 3


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_waiter_that_leaves_releases_what_was_granted_to_an_earlier_attempt(
    interrupted: bool,
) -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters, wait=0.1)
    earlier = waiting.token
    waiting.asks()
    free(masters, lease)  # before any master hears the next attempt
    assert masters.tokens() == [earlier] * 3
    if interrupted:
        leave = waiting.protocol.throw(Cancelled())
    else:
        masters.now += 0.2
        masters.hear(waiting.asked, deaf=(0, 1), mute=(2,))
        leave = waiting.protocol.send(masters.now)
    assert isinstance(leave, Round)
    masters.hear(leave)
    assert masters.tokens() == [""] * 3
    assert not any(memory.keyspace.hashes for memory in masters.memories)


def test_a_release_also_releases_what_was_granted_to_an_earlier_attempt() -> None:
    masters = Masters(3)
    lease = masters.taken()
    waiting = Offering(masters)
    earlier = waiting.token
    free(masters, lease)
    held = waiting.wins(deaf=(2,))
    assert masters.tokens() == [held.token, held.token, earlier]
    free(masters, held)
    assert masters.tokens() == [""] * 3
    assert not any(memory.keyspace.hashes for memory in masters.memories)


def test_offers_expire_with_their_queue() -> None:
    masters = Masters(1)
    masters.taken(ttl=2.0)
    Offering(masters)
    keyspace, key = masters.memories[0].keyspace, masters.deployment.offers("r")
    assert keyspace.ends[key] == keyspace.ends[masters.deployment.queue("r")]
    masters.now += 5.1
    assert not keyspace.hash(key)
