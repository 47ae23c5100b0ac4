"""Waiters are served in the order of coming, also when clients die and masters forget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from redlock_django.engine import attempt, pauses
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.commands import Acquire, Release
from redlock_django.engine.steps import Pause, Round
from redlock_django.engine.undo import undo_of
from redlock_django.wire.links.waiters import WATCH
from tests.engine.checker import Checker, Holding
from tests.engine.clients import Client, Program
from tests.engine.lua_mutation import lua, mutate_script
from tests.engine.masters import Masters
from tests.engine.simulator import Setup, Simulation
from tests.engine.world import SimulatedMaster, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TURNS = Setup(masters=5, clients=6, seconds=3.0, latency=0.0005, late=0.02, ttls=(0.5, 0.5))
# The longest gap after a lost call, and after a turn that passed unused.
FALLBACK = 2 * pauses.CALM + 6 * pauses.CALM_LONGEST / pauses.CROWD + 0.03
MISSED = WATCH + 0.03
by_day = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))]
)


def taking_turns(
    client: Client, *, wait: float, pause: float, stop_at: float, ttl: float = 0.5
) -> Program:
    """Acquire, hold and release the one resource in a loop."""
    while client.world.now < stop_at:
        yield Pause(client.rng.expovariate(1 / pause))
        yield from client.once(("r0",), ttl, wait, client.rng.uniform(0.001, 0.02))


def crowd(
    seed: int, setup: Setup = TURNS, *, pause: float = 0.02, waits: tuple[float, ...] = (20.0,)
) -> Simulation:
    """Return a simulation in which all clients are connected and want one resource."""
    simulation = Simulation(seed, replace(setup, busy=1e9))
    simulation.world.run(0.05)
    for number, client in enumerate(simulation.clients):
        wait = waits[number % len(waits)]
        client._program.close()
        client.start(taking_turns(client, wait=wait, pause=pause, stop_at=setup.seconds))
    return simulation


def run_disturbed(simulation: Simulation, disturb: Callable[[], None] = lambda: None) -> Simulation:
    """Run the simulation, with a disturbance every 0.3 s."""
    for step in range(1, int(simulation.setup.seconds / 0.3)):
        simulation.world.run(0.3 * step)
        disturb()
    simulation.world.run(simulation.setup.seconds)
    return simulation


@by_day
@pytest.mark.parametrize("masters", [1, 3, 5])
def test_waiters_are_not_overtaken_and_do_not_wait_for_the_fallback(
    masters: int, seed: int
) -> None:
    simulation = run_disturbed(crowd(seed, replace(TURNS, masters=masters)))
    checker = simulation.checker
    assert len(checker.holders) == 6
    assert len(checker.gaps) > 100
    assert checker.overtaken == 0
    assert max(checker.gaps) < 0.03


@pytest.mark.slow
@by_day
def test_waiters_that_ask_before_their_turn_overtake_no_waiter(seed: int) -> None:
    """As if each release woke half of all waiters, whatever their places are."""
    simulation = crowd(seed)
    for client in simulation.clients:
        send = partial(_send_and_wake, client, client._send_round, simulation.clients)
        client._send_round = send  # type: ignore[method-assign]
    run_disturbed(simulation)
    assert simulation.checker.overtaken == 0
    assert len(simulation.checker.holders) == 6
    assert max(simulation.checker.gaps) < 0.03


def _with_shared_links(clients: list[Client], processes: int) -> None:
    """Make these clients the threads of so many processes, with one clock and one set of links."""
    for number, client in enumerate(clients):
        first = clients[number % processes]
        client.clock, client.wire = first.clock, first.wire


@by_day
@pytest.mark.parametrize("processes", [1, 3])
def test_threads_that_share_links_are_served_in_order(processes: int, seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, clients=12, ttls=(0.2, 0.2)))
    _with_shared_links(simulation.clients, processes)
    run_disturbed(simulation)
    assert simulation.checker.overtaken == 0
    assert len(simulation.checker.holders) == 12
    assert max(simulation.checker.gaps) < 0.03


def _send_and_wake(
    client: Client, send: Callable[[Round], None], clients: list[Client], asked: Round
) -> None:
    send(asked)
    if client.name in client.checker.asking:
        return  # what it may release is an attempt that was lost
    if not any(isinstance(command, Release) for command in asked.commands):
        return
    for other in clients:
        if other is not client and other.waiter is not None and client.rng.random() < 0.5:
            other.waiter.hurry(0.0)


@by_day
def test_clocks_that_are_wrong_by_hours_gain_nothing(seed: int) -> None:
    simulation = run_disturbed(crowd(seed, replace(TURNS, wrong_walls=7200.0, skew=0.05)))
    # Within the skew of the masters' clocks the order is still random.
    assert simulation.checker.overtaken <= 12
    assert len(simulation.checker.holders) == 6


@by_day
def test_dead_waiters_cost_nothing_but_an_unheard_call(seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, clients=12, ttls=(0.2, 0.2)))

    def kill_a_waiter() -> None:
        # One in a pause: in a round it might die with the lock held.
        resting = [client for client in simulation.living if client.is_resting]
        if len(resting) > 3:
            resting[0].kill()

    run_disturbed(simulation, kill_a_waiter)
    assert simulation.world.seen["killed"] > 2
    assert simulation.checker.overtaken == 0
    # A waiter may die between its call and its round: then its turn passes unused.
    assert max(simulation.checker.gaps) < MISSED
    assert sorted(simulation.checker.gaps)[-4] < 0.03


@by_day
def test_stopped_waiters_cost_one_turn(seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, clients=8))

    def stop_a_waiter() -> None:
        resting = [client for client in simulation.living if client.is_resting]
        if resting:
            resting[0].pause(0.5)

    run_disturbed(simulation, stop_a_waiter)
    assert simulation.world.seen["pauses"] > 3
    assert simulation.world.seen["asked to watch"] > 50
    assert max(simulation.checker.gaps) < MISSED


@pytest.mark.slow
@by_day
def test_lost_links_cost_no_long_pause(seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, clients=3, faults=frozenset({"reset"}), every=0.05))
    for kinds, rng, every in simulation._schedules():
        simulation.world.after(every, simulation._fault, kinds, rng, every)
    simulation.world.run(simulation.setup.seconds)
    assert simulation.world.seen["fault reset"] > 30
    assert max(simulation.checker.gaps) < 0.4


@by_day
def test_on_a_busy_host_a_free_lock_is_taken_within_a_second(seed: int) -> None:
    """Every client does each step 0.1 to 0.3 s late: most turns are over before they are used."""
    setup = replace(TURNS, masters=3, clients=20, seconds=15.0, max_ttl=4.0, busy=1e9)
    simulation = Simulation(seed, setup)
    simulation.world.run(0.5)
    for client in simulation.clients:
        client._program.close()
        client._go_on = partial(_go_on_late, client, client._go_on)  # type: ignore[method-assign]
        client.start(taking_turns(client, wait=20.0, pause=0.02, stop_at=15.0, ttl=3.0))
    simulation.world.run(setup.seconds)
    assert len(simulation.checker.holders) == 20
    assert max(simulation.checker.gaps) < 1.0


def _go_on_late(client: Client, go_on: Callable[[int], None], ticket: int) -> None:
    client.world.after(client.rng.uniform(0.1, 0.3), client.hear, go_on, ticket)


@pytest.mark.slow
@pytest.mark.fault(
    without=(
        "a late reply costs its link",
        "a waiter asks again without an answer",
    )
)
@by_day
def test_masters_that_a_crowd_overloads_serve_all_its_waiters(seed: int) -> None:
    """Each command takes 12 ms, so the first round of all clients exceeds any patience."""
    setup = replace(TURNS, masters=3, clients=80, max_ttl=8.0, busy=1e9)
    simulation = Simulation(seed, replace(setup, master_timeout=0.1, give_up=3.0))
    simulation.world.run(2.0)
    for master in simulation.masters:
        master.receive = partial(_work_off, master, master.receive, [0.0])  # type: ignore[method-assign]
    for client in simulation.clients:
        client._program.close()
        client.start(client.once(("r0",), 6.0, 25.0, 0.001))
    simulation.world.run(25.0)
    assert len(simulation.checker.holders) == 80
    assert max(simulation.checker.gaps) < 3.0


def _work_off(
    master: SimulatedMaster,
    receive: Callable[..., None],
    free: list[float],
    what: Callable[..., None],
    *args: Any,
) -> None:
    """Process what has arrived after what came before it."""
    free[0] = max(free[0], master.world.now) + 0.012
    master.world.at(free[0], receive, what, *args)


@pytest.mark.slow
@by_day
def test_masters_that_forget_their_queues_cost_one_fallback(seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, masters=3))
    masters, rng = simulation.masters, simulation.world.rng("forgetting")

    def forget_queues() -> None:
        for master in rng.sample(masters, rng.randint(1, 3)):
            for key in list(master.memory.keyspace.sets):
                if key.startswith(master.deployment.queue("")):
                    master.memory.keyspace.sets.pop(key)
                    master.memory.keyspace.ends.pop(key)

    run_disturbed(simulation, forget_queues)
    assert len(simulation.checker.holders) == 6
    assert max(simulation.checker.gaps) < FALLBACK


@by_day
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [{"restart"}, {"kill"}, {"reset", "deaf", "mute"}])
def test_with_masters_failing_every_waiter_is_served(kinds: set[str], seed: int) -> None:
    setup = replace(TURNS, faults=frozenset(kinds), every=0.3, seconds=8.0, max_ttl=0.6)
    simulation = crowd(seed, setup)
    simulation.run()
    assert len(simulation.checker.holders) >= 6
    assert simulation.world.seen["woken"] > 5


# Several slots.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("limit", [2, 3])
def test_waiters_for_slots_are_served_in_order_and_do_not_wait_for_the_fallback(
    limit: int, seed: int
) -> None:
    """Waiters with turns for different slots at the same moment may learn of them in any order."""
    simulation = run_disturbed(crowd(seed, replace(TURNS, clients=8, limit=limit)))
    checker = simulation.checker
    assert len(checker.holders) == 8
    assert len(checker.gaps) > 100
    assert checker.overtaken <= limit
    assert max(checker.gaps) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_turn_of_a_dead_waiter_passes_on(seed: int) -> None:
    simulation = crowd(seed, replace(TURNS, clients=12, limit=2, ttls=(0.2, 0.2)))

    def kill_a_waiter() -> None:
        resting = [client for client in simulation.living if client.is_resting]
        if len(resting) > 3:
            simulation.world.rng("killing").choice(resting).kill()

    run_disturbed(simulation, kill_a_waiter)
    assert simulation.world.seen["killed"] > 2
    assert max(simulation.checker.gaps) < MISSED


def _asking(client: Client, granted: Counter[int], refused: Counter[int]) -> Program:
    """Acquire a slot without waiting, hold it and release it, in a loop."""
    checker, rng = client.checker, client.rng
    while True:
        yield Pause(rng.expovariate(1 / 0.01))
        checker.asks(client.name, ("r0",), 0.0, client.limit)
        try:
            lease = yield from client.store.acquire(("r0",), 2.0, 0.0, "{}", client.limit)
        except NotAcquired as error:
            checker.refused(client.name, 0.0, error, client.wire.master_timeout)
            refused[error.attempts] += 1
            continue
        finally:
            checker.asking.pop(client.name)
        granted[lease.attempts] += 1
        checker.granted(client._held(lease))
        yield Pause(rng.expovariate(1 / 0.02))
        checker.ended(lease)
        yield from client.store.release(lease)


@pytest.mark.slow
def test_calls_that_do_not_wait_end_in_two_rounds_where_many_ask_for_few_slots() -> None:
    """Hardly any takes three, although a slot is rarely free and several see it come free."""
    setup = replace(TURNS, clients=8, limit=3, master_timeout=0.5, off_masters=0.0, busy=1e9)
    simulation = Simulation(0, setup)
    simulation.world.run(0.05)
    granted, refused = Counter[int](), Counter[int]()
    for client in simulation.clients:
        client._program.close()
        client.start(_asking(client, granted, refused))
    simulation.world.run(1.0)
    for calls in (granted, refused):
        assert calls.total() > 100
        assert calls[1] / calls.total() > 0.4
        assert (calls[1] + calls[2]) / calls.total() > 0.95
        assert max(calls) <= 4


@pytest.mark.parametrize(("began", "overtaken"), [(0.04, 1), (0.06, 0)])
def test_a_client_whose_wait_is_over_is_not_overtaken(began: float, overtaken: int) -> None:
    """It leaves the queue, whose next waiter may be granted the lock before it has left."""
    checker = Checker(World(0))
    lease = Masters(1).taken("r")
    new = Holding(cast("Client", None), lease, began, set())
    checker.asks("c0", ("r",), 0.05)
    checker.queues("c0")
    checker.world.run(0.01)
    checker.asks("c1", ("r",), 20.0)
    checker.turn(new, checker.asking["c1"])
    assert checker.overtaken == overtaken


# Mutants: a queue with one rule less. Each must be detected.

Patch = pytest.MonkeyPatch


def _nobody_is_called(patch: Patch) -> None:
    patch.setattr(SimulatedMaster, "_publish", lambda self, channel, name: 1)


def _the_first_to_ask(patch: Patch) -> None:
    asked = "(slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2"
    mutate_script(patch, "acquire", lua(asked, "false"))


def _the_last_ticket_first(patch: Patch) -> None:
    mutate_script(patch, "queue", lua("'%.0f', ticket", "'%.0f', 4e15 - ticket"))


def _a_new_ticket_each_time(patch: Patch) -> None:
    now = "redis.call('TIME')[1] * 1000000 + redis.call('TIME')[2]"
    mutate_script(patch, "queue", lua("'%.0f', ticket", f"'%.0f', {now}"))


def _nobody_leaves(patch: Patch) -> None:
    def undo(ask: Acquire, *, leave: bool, calls: bool = True) -> Release:
        return undo_of(ask, leave=False, calls=calls)

    patch.setattr(attempt, "undo_of", undo)


MUTANTS = [
    _nobody_is_called, _the_first_to_ask, _the_last_ticket_first, _a_new_ticket_each_time,
    _nobody_leaves,
]  # fmt: skip


def check_fairness(seed: int) -> None:
    simulation = crowd(seed, waits=(20.0, 0.0, 0.03), pause=0.005)

    def check() -> None:
        assert simulation.checker.overtaken == 0
        assert max(simulation.checker.gaps, default=0) < 0.03

    run_disturbed(simulation, check)  # a mutant is detected early
    check()
    assert simulation.world.seen["locked"] > 50
    simulation.run()


@pytest.mark.parametrize(
    "seed", [5, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4))]
)
@pytest.mark.slow
def test_clients_that_do_not_wait_or_give_up_neither_overtake_nor_block_waiters(seed: int) -> None:
    check_fairness(seed)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_mutant_is_detected(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_fairness(5)  # which passes without a mutant
