"""Masters behind a broken network: packets are lost without an error, or are delayed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from redlock_django.engine.errors import QuorumUnreachable, ResourceLocked
from redlock_django.engine.validity import LeaseState
from tests.live.network import FaultUnavailable, Host, hosts, namespace_obstacle
from tests.live.traffic import Traffic, all_freed
from tests.waiting import until
from tests.wire.variants import VARIANTS, Variant, make_backend, open_variant, threads_by_day

pytestmark = [pytest.mark.live, pytest.mark.slow]

NAMESPACES = Path("/run/netns")

ways = pytest.mark.parametrize(
    ("cut", "heal"), [(Host.cut, Host.join), (Host.mute, Host.unmute)], ids=["cut", "mute"]
)
Way = Callable[[Host], None]


@pytest.fixture(scope="module")
def five_machines() -> Iterator[list[Host]]:
    if reason := namespace_obstacle():
        pytest.skip(reason)
    with hosts(5) as made:
        yield made


@pytest.fixture
def machines(five_machines: list[Host]) -> list[Host]:
    """Return five hosts with an empty master each."""
    for machine in five_machines:
        with machine.client() as client:
            client.flushall()
    return five_machines


_WAITING = """
import signal
from tests.live.network import hosts

with hosts(1) as (host,):
    print(host.name, flush=True)
    signal.pause()
"""


def test_no_namespace_is_left_by_sigterm() -> None:
    if reason := namespace_obstacle():
        pytest.skip(reason)
    program = [sys.executable, "-c", _WAITING]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        assert (NAMESPACES / name).exists()
        process.terminate()
    assert name
    assert not (NAMESPACES / name).exists()


@contextmanager
def linked(name: str, machines: list[Host]) -> Iterator[Variant]:
    """Connect a client to all masters."""
    backend = make_backend([machine.url for machine in machines], max_ttl=4.0, master_timeout=0.5)
    with open_variant(name, backend) as variant:
        variant.start()
        variant.wait_usable(5)
        yield variant


def holders(machines: list[Host], resource: str) -> int:
    found = 0
    for machine in machines:
        with machine.client() as client:
            found += int(client.exists(f"redlock:lock:{resource}"))
    return found


def nothing_left(variant: Variant, machines: list[Host]) -> None:
    """Wait until every link is back and every lock is freed.

    TCP still delivers commands of links that were closed, as late as its next retransmission, and
    delivers a release after its acquire. A lock that expired instead would stay in the index.
    """
    all_freed([variant], machines)


@pytest.mark.fault(without=("undo only what was granted",))
@threads_by_day
@ways
def test_a_minority_that_is_cut_off(name: str, machines: list[Host], cut: Way, heal: Way) -> None:
    with linked(name, machines) as variant:
        held = variant.acquire("order:1", ttl=2.0)
        for machine in machines[:2]:
            cut(machine)
        try:
            state, held = variant.extend(held, 2.0)
            assert state is LeaseState.RENEWED
            other = variant.acquire("order:2", ttl=2.0)
            with pytest.raises(ResourceLocked):
                variant.acquire("order:1", ttl=2.0)
            assert variant.release(other) is True
            assert variant.release(held) is True
        finally:
            for machine in machines[:2]:
                heal(machine)
        again = variant.acquire("order:1", ttl=2.0, wait=60.0)
        assert again.fences[0] > held.fences[0]
        variant.release(again)
        nothing_left(variant, machines)


@pytest.mark.fault(without=("undo only what was granted",))
@threads_by_day
@ways
def test_a_majority_that_is_cut_off(name: str, machines: list[Host], cut: Way, heal: Way) -> None:
    with linked(name, machines) as variant, linked(name, machines) as rival:
        held = variant.acquire("order:1", ttl=2.0)
        until(lambda: holders(machines, "order:1") == 5, what="all masters have the lock")
        for machine in machines[:3]:
            cut(machine)
        try:
            # The holder does not learn whether it was extended, and no client acquires anything.
            state, held = variant.extend(held, 2.0)
            assert state is LeaseState.UNKNOWN
            for client in (variant, rival):
                with pytest.raises(QuorumUnreachable):
                    client.acquire("order:2", ttl=2.0)
        finally:
            for machine in machines[:3]:
                heal(machine)
        taken = rival.acquire("order:1", ttl=2.0, wait=60.0)
        # It had to wait until the lease had ended: its holder cannot have released it.
        assert rival.backend.clock() >= held.until
        assert taken.fences[0] > held.fences[0]
        variant.wait_usable(5)
        # The minority that received the extension may keep the lock until it is released.
        assert variant.release(held) is False
        rival.release(taken)
        nothing_left(rival, machines)
        nothing_left(variant, machines)


@contextmanager
def network_fault(
    machines: list[Host], cause: Callable[[Host, int], None], amount: int
) -> Iterator[None]:
    """Cause a network fault at these machines while the block runs; skip if that is impossible."""
    try:
        try:
            for machine in machines:
                cause(machine, amount)
        except FaultUnavailable as why:
            pytest.skip(str(why))
        yield
    finally:
        for machine in machines:
            with suppress(FaultUnavailable):
                cause(machine, 0)


@pytest.mark.fault
@pytest.mark.parametrize(("percent", "of"), [(5, 5), (20, 5), (50, 2)])
def test_packets_that_are_lost(percent: int, of: int, machines: list[Host]) -> None:
    """TCP retransmits lost packets, so locks take longer, but never have two holders."""
    with ExitStack() as stack:
        variants = [stack.enter_context(linked(name, machines)) for name in VARIANTS]
        with (
            network_fault(machines[:of], Host.drop, percent),
            Traffic(variants, workers=4, resources=2) as traffic,
        ):
            lost = f"{percent} % of the packets to {of} masters are lost"
            traffic.wait_for_wins(8, lost, seconds=90)  # TCP waits longer after each loss
        assert traffic.trouble == []
        for variant in variants:
            nothing_left(variant, machines)


@pytest.mark.fault
@threads_by_day
def test_a_very_slow_network(name: str, machines: list[Host]) -> None:
    with linked(name, machines) as variant:
        with network_fault(machines, Host.narrow, 16):
            for turn in range(300):  # a client that sends slowly enough is not delayed
                if turn > 5 and any(machine.delayed() for machine in machines):
                    break
                held = variant.acquire(f"order:{turn}", ttl=4.0)
                state = LeaseState.UNKNOWN
                while state is LeaseState.UNKNOWN:  # this process was stalled
                    state, held = variant.extend(held, 4.0)
                assert state is LeaseState.RENEWED
                with pytest.raises(ResourceLocked):
                    variant.acquire(f"order:{turn}", ttl=2.0)
                assert variant.release(held) is True
            assert any(machine.delayed() for machine in machines)
        nothing_left(variant, machines)
