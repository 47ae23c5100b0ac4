"""Masters on hosts of their own whose cables are pulled: no answer, no refusal, only silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from redlock_django.engine.errors import QuorumUnreachable, ResourceLocked
from redlock_django.engine.validity import LeaseState
from tests.live.network import Host, NotHere, hosts, why_not
from tests.live.traffic import Traffic, all_freed
from tests.waiting import until
from tests.wire.variants import VARIANTS, Variant, make_backend, open_variant

pytestmark = [pytest.mark.live, pytest.mark.slow]

both = pytest.mark.parametrize("name", VARIANTS)
ways = pytest.mark.parametrize(
    ("cut", "heal"), [(Host.cut, Host.join), (Host.mute, Host.unmute)], ids=["cut", "mute"]
)
Way = Callable[[Host], None]


@pytest.fixture(scope="module")
def five_machines() -> Iterator[list[Host]]:
    if reason := why_not():
        pytest.skip(reason)
    with hosts(5) as made:
        yield made


@pytest.fixture
def machines(five_machines: list[Host]) -> list[Host]:
    """Five hosts with a master each, which is empty."""
    for machine in five_machines:
        with machine.client() as client:
            client.flushall()
    return five_machines


@contextmanager
def linked(name: str, machines: list[Host]) -> Iterator[Variant]:
    """Links to all masters."""
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

    What was said over a link that was given up is still delivered, as late as TCP says it again:
    the release behind its acquire, too. A lock that expired instead stays on the index.
    """
    all_freed([variant], machines, links=20, seconds=20)


@both
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
        again = variant.acquire("order:1", ttl=2.0, wait=3.0)
        assert again.fences[0] > held.fences[0]
        variant.release(again)
        nothing_left(variant, machines)


@both
@ways
def test_a_majority_that_is_cut_off(name: str, machines: list[Host], cut: Way, heal: Way) -> None:
    with linked(name, machines) as variant, linked(name, machines) as rival:
        held = variant.acquire("order:1", ttl=2.0)
        until(lambda: holders(machines, "order:1") == 5, what="on all masters")
        for machine in machines[:3]:
            cut(machine)
        try:
            # Nobody learns whether it was extended, nor gets what may still be held.
            state, held = variant.extend(held, 2.0)
            assert state is LeaseState.UNKNOWN
            for who in (variant, rival):
                with pytest.raises(QuorumUnreachable):
                    who.acquire("order:2", ttl=2.0)
            assert variant.backend.clock() < held.until
        finally:
            for machine in machines[:3]:
                heal(machine)
        taken = rival.acquire("order:1", ttl=2.0, wait=20.0)
        # It had to wait until the lease was over: its holder cannot have freed it.
        assert rival.backend.clock() >= held.until
        assert taken.fences[0] > held.fences[0]
        variant.wait_usable(5, 20)
        # The minority that heard of it may hold what was extended, until it is given back.
        assert variant.release(held) is False
        rival.release(taken)
        nothing_left(rival, machines)
        nothing_left(variant, machines)


@contextmanager
def spoiled(machines: list[Host], spoil: Callable[[Host, int], None], by: int) -> Iterator[None]:
    """The ways to these machines spoilt; skips where that cannot be done."""
    try:
        try:
            for machine in machines:
                spoil(machine, by)
        except NotHere as why:
            pytest.skip(str(why))
        yield
    finally:
        for machine in machines:
            with suppress(NotHere):
                spoil(machine, 0)


@pytest.mark.parametrize(("percent", "of"), [(5, 5), (20, 5), (50, 2)])
def test_packets_that_are_lost(percent: int, of: int, machines: list[Host]) -> None:
    """It takes longer, since TCP says again what was lost, and is never given to two."""
    with ExitStack() as stack:
        variants = [stack.enter_context(linked(name, machines)) for name in VARIANTS]
        with (
            spoiled(machines[:of], Host.drop, percent),
            Traffic(variants, workers=4, resources=2) as traffic,
        ):
            lost = f"{percent} % of the packets to {of} masters are lost"
            traffic.wait_for_wins(8, lost, seconds=90)  # TCP waits longer for each that is lost
        assert traffic.trouble == []
        for variant in variants:
            nothing_left(variant, machines)


@both
def test_a_way_that_is_very_narrow(name: str, machines: list[Host]) -> None:
    with linked(name, machines) as variant:
        with spoiled(machines, Host.narrow, 16):
            for turn in range(300):  # who asks slowly enough does not notice
                if turn > 5 and any(machine.delayed() for machine in machines):
                    break
                held = variant.acquire(f"order:{turn}", ttl=4.0)
                state, held = variant.extend(held, 4.0)
                assert state is LeaseState.RENEWED
                with pytest.raises(ResourceLocked):
                    variant.acquire(f"order:{turn}", ttl=2.0)
                assert variant.release(held) is True
            assert any(machine.delayed() for machine in machines)
        nothing_left(variant, machines)
