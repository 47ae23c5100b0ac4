"""Masters behind a broken network, in which packets are lost without an error."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redlock_django.engine.errors import QuorumUnreachable, ResourceLocked
from redlock_django.engine.validity import LeaseState
from tests.live.network import Host, hosts, namespace_obstacle
from tests.live.traffic import all_freed
from tests.waiting import until
from tests.wire.variants import Variant, make_backend, open_variant, threads_by_day

pytestmark = [pytest.mark.live, pytest.mark.slow]

NAMESPACES = Path("/run/netns")
TTL = 60.0
"""No lock ends while its test runs."""

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
    backend = make_backend([machine.url for machine in machines], max_ttl=TTL, master_timeout=0.5)
    with open_variant(name, backend) as variant:
        variant.start()
        variant.wait_usable(5)
        yield variant


def seconds_of(cut: Way, heal: Way, machine: Host) -> float:
    """Return how long it takes here to cut a master off and to heal that."""
    began = time.monotonic()
    cut(machine)
    heal(machine)
    return time.monotonic() - began


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
        held = variant.acquire("order:1", ttl=TTL)
        for machine in machines[:2]:
            cut(machine)
        try:
            state, held = variant.extend(held, TTL)
            assert state is LeaseState.RENEWED
            other = variant.acquire("order:2", ttl=TTL)
            with pytest.raises(ResourceLocked):
                variant.acquire("order:1", ttl=TTL)
            assert variant.release(other) is True
            assert variant.release(held) is True
        finally:
            for machine in machines[:2]:
                heal(machine)
        again = variant.acquire("order:1", ttl=TTL, wait=60.0)
        assert again.fences[0] > held.fences[0]
        variant.release(again)
        nothing_left(variant, machines)


@pytest.mark.fault(without=("undo only what was granted",))
@threads_by_day
@ways
def test_a_majority_that_is_cut_off(name: str, machines: list[Host], cut: Way, heal: Way) -> None:
    # A lease that is waited for; the masters must be cut off while it lasts.
    ttl = 2.0 + 10 * seconds_of(cut, heal, machines[0])
    with linked(name, machines) as variant, linked(name, machines) as rival:
        held = variant.acquire("order:1", ttl=ttl)
        until(lambda: holders(machines, "order:1") == 5, what="all masters have the lock")
        for machine in machines[:3]:
            cut(machine)
        try:
            # The holder does not learn whether it was extended, and no client acquires anything.
            state, held = variant.extend(held, ttl)
            assert state is LeaseState.UNKNOWN
            for client in (variant, rival):
                with pytest.raises(QuorumUnreachable):
                    client.acquire("order:2", ttl=ttl)
        finally:
            for machine in machines[:3]:
                heal(machine)
        taken = rival.acquire("order:1", ttl=ttl, wait=60.0)
        # It had to wait until the lease had ended: its holder cannot have released it.
        assert rival.backend.clock() >= held.until
        assert taken.fences[0] > held.fences[0]
        variant.wait_usable(5)
        # The minority that received the extension may keep the lock until it is released.
        assert variant.release(held) is False
        rival.release(taken)
        nothing_left(rival, machines)
        nothing_left(variant, machines)
