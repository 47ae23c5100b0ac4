"""The pause of a waiter ends with a call, which may name a slot, or when a link comes or goes."""

from __future__ import annotations

from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.steps import Pause
from redlock_django.wire.clock import clock
from redlock_django.wire.links.waiters import Waiter, Waiters
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never, without

DEPLOYMENT = Deployment(names=("a", "b", "c"))


@kills("a call with a slot is not heard", Waiters.call,
       always("waiter is None or not slot.isdigit()"))  # fmt: skip
def test_a_call_names_a_slot() -> None:
    waiters = Waiters(DEPLOYMENT, clock)
    waiter = waiters.new()
    name = waiter.name.encode()
    assert waiters.call(name + b"/2", 0)
    assert waiter.called_slot == 2
    assert not waiters.call(name + b"/x", 1)
    assert not waiters.call(b"another/2", 1)
    assert not waiter.decided
    assert waiters.call(name + b"/1", 1)
    assert waiter.decided


@kills("a called slot is asked for twice", Waiter.ask, without("self.called_slot = None"))
def test_a_round_ends_what_a_call_has_named() -> None:
    waiters = Waiters(DEPLOYMENT, clock)
    waiter = waiters.new()
    waiters.call(waiter.name.encode() + b"/2", 0)
    waiter.ask()
    assert waiter.called_slot is None


# Pauses.

TURN = 0.1  # s


@kills("one call is enough", Waiter.decided, instead("self._need", "1"))
def test_a_minority_that_calls_is_not_enough() -> None:
    rest = _Rest(0, 1, 2)
    rest.begin()
    for master in (0, 0, 2):
        assert not rest.woken
        rest.waiters.call(rest.waiter.name.encode(), master)
    assert rest.woken


@kills("an old call counts", Waiter.ask, without("self._callers.clear()"))
def test_calls_before_a_round_do_not_count_after_it() -> None:
    waiter = Waiter("redlock:wake:here 1", 3, {0, 1, 2}, lambda: 0.0)
    waiter.call(0)
    waiter.ask()
    waiter.call(1)
    assert not waiter.decided


class _Rest:
    """A waiter that rests for 2 s, or for 0.1 s where it may miss its call."""

    def __init__(self, *listening: int) -> None:
        self.now = 0.0
        self.woken = 0
        self.waiters = Waiters(Deployment(names=("a", "b", "c")), lambda: self.now)
        for master in listening:
            self.waiters.listen(master)
        self.waiter = self.waiters.new()
        self.waiter.wake = self._wake
        self.waiter.ask()

    def _wake(self) -> None:
        self.woken += 1

    def begin(self) -> float:
        """Begin the pause; return its seconds."""
        return self.waiter.rest(Pause(2.0, 0.1))


def test_a_waiter_that_will_be_called_does_not_poll() -> None:
    rest = _Rest(0, 2)
    assert rest.begin() == rest.waiter.until == 2.0


@kills("calls over lost links are expected", Waiter.rest,
       always("len(self._listening) >= self._need"))  # fmt: skip
def test_a_waiter_that_too_few_masters_can_call_polls() -> None:
    assert _Rest(1).begin() == 0.1


@kills("a lost link goes unnoticed", Waiters.lose, without(Waiter.doubt))
def test_after_a_lost_link_a_waiter_asks_soon() -> None:
    rest = _Rest(0, 1, 2)
    rest.begin()
    rest.now = 0.5
    rest.waiters.lose(1)
    assert (rest.waiter.until, rest.woken) == (0.6, 1)
    rest.waiters.lose(1)
    assert rest.woken == 1, "it was lost already"


@kills("a link lost during a round goes unnoticed", Waiter.rest, always("not self._doubted"))
def test_a_link_lost_during_a_round_shortens_the_pause_after_it() -> None:
    rest = _Rest(0, 1, 2)
    rest.waiters.lose(1)
    assert rest.begin() == 0.1
    rest.waiter.ask()
    assert rest.begin() == 2.0, "the round after it joined the queues of the others"


@kills("a new link goes unnoticed", Waiters.listen, without(Waiter.join))
def test_after_a_new_link_a_waiter_asks_soon() -> None:
    rest = _Rest(0, 1)
    rest.waiters.listen(2)
    assert rest.begin() == 2.0, "the round was sent after the subscription"
    rest.waiters.listen(2)
    assert (rest.waiter.until, rest.woken) == (0.1, 1)


@kills("a pause ends in the past", Waiter.rest,
       instead("max(..., self.until - now)", "self.until - now"))  # fmt: skip
def test_after_a_round_longer_than_the_turn_it_watches_a_waiter_asks_at_once() -> None:
    rest = _Rest(0, 1, 2)
    rest.waiter.watch()
    rest.now = 3.0
    assert rest.begin() == 0.0


@kills("a request to watch is a call", Waiters.call, never("name.startswith(...)"))
def test_a_waiter_that_watches_a_turn_asks_after_it() -> None:
    rest = _Rest(0, 1, 2)
    rest.begin()
    rest.now = 1.0
    for master in range(3):
        assert rest.waiters.call(b" " + rest.waiter.name.encode(), master)
    assert not rest.waiter.decided
    assert TURN < rest.waiter.until - rest.now < 1.5 * TURN
    rest.waiter.ask()
    rest.waiter.watch()
    assert 0.1 < rest.begin() < 0.15, "a turn that began during the round is watched, too"


@kills("a call ends two pauses", Waiter.end_rest,
       without("self.wake, self.until = wake_none, math.inf"))  # fmt: skip
def test_what_ended_a_pause_does_not_end_the_next_one() -> None:
    rest = _Rest(0, 1, 2)
    rest.waiter.rest(Pause(60.0))
    rest.waiter.hurry(0.0)
    assert rest.waiter.until == rest.now
    rest.waiter.end_rest()
    rest.now += 1.0
    rest.waiter.rest(Pause(2.0))
    assert rest.waiter.until == 3.0
