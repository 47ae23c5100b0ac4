"""Both drivers run the same scenarios, with the same outcomes and the same keys on the masters."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.testing.masters import LocalMaster
from tests.waiting import until
from tests.wire.proxy import behind
from tests.wire.variants import SOON, VARIANTS, Variant, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from redlock_django.engine.quorum import Tally
    from redlock_django.engine.validity import RedlockLease


pytestmark = [pytest.mark.live, pytest.mark.parametrize("name", VARIANTS)]

PREFIX = "redlock:lock:"


class Scenario:
    """Runs each step with a variant and records its outcome."""

    def __init__(self, variant: Variant, masters: Sequence[LocalMaster]) -> None:
        self.variant = variant
        self.masters = masters
        self.lines: list[str] = []
        self.leases: dict[str, RedlockLease] = {}

    def acquire(self, who: str, *resources: str, ttl: float = 8.0) -> None:
        try:
            lease = self.variant.acquire(*resources, ttl=ttl)
        except NotAcquired as error:
            kind = type(error).__name__
            said = kinds(error.tally, whole=isinstance(error, QuorumUnreachable))
            self.lines.append(f"{who} takes {'+'.join(resources)}: {kind} {said}")
        else:
            self.leases[who] = lease
            self.lines.append(f"{who} takes {'+'.join(resources)}: held")

    def extend(self, who: str, *, votes: bool = True) -> None:
        state, self.leases[who] = self.variant.extend(self.leases[who])
        self.variant.settle()  # the outcome includes votes after the verdict
        said = reasons(self.leases[who].tally) if votes else ""
        self.lines.append(f"{who} extends: {state.value} {said}".strip())

    def release(self, who: str) -> None:
        freed = self.variant.release(self.leases[who])
        self.lines.append(f"{who} releases: {freed}")

    def look(self) -> None:
        """Record the locks on the masters, once every reply has come in."""
        self.variant.settle()
        self.lines.append(locks_on(self.masters))

    def wait_clean(self) -> None:
        """Wait until every master is usable and has no lock."""
        self.variant.wait_usable(len(self.masters))
        until(lambda: locks_on(self.masters) == "nothing", f"{locks_on(self.masters)} goes away")


def kinds(tally: Mapping[str, str], *, whole: bool) -> str:
    """Return the reasons of holding masters; with `whole`, those of the other masters."""
    # Without the remark about stalls, which depends on the machine.
    stated = (re.sub(r" \((this host|it or the).*\)$", "", reason) for reason in tally.values())
    said = {re.sub(r"\d[\d.]*", "#", reason) for reason in stated}
    said = {reason for reason in said if reason.startswith("held") is not whole}
    # Which masters answer after the verdict is random.
    return ", ".join(sorted(said - {"granted", "no answer yet", "not asked", "connecting"}))


def reasons(tally: Tally) -> str:
    said = {vote.reason for vote in tally.votes if vote is not None and vote.time is not None}
    return ", ".join(sorted(said - {"granted"}))


def locks_on(masters: Sequence[LocalMaster]) -> str:
    """Return the locks on the masters that answer; check that keys and index agree."""
    found: dict[str, list[str]] = {}
    for index, master in enumerate(masters, 1):
        if not master.alive or master.paused:
            continue
        with master.client() as client, client.pipeline() as both_at_once:
            both_at_once.keys(f"{PREFIX}*").zrangebyscore("redlock:held", 0, "+inf")
            locks, members = both_at_once.execute()
        keys = sorted(key.decode().removeprefix(PREFIX) for key in locks)
        listed = sorted(member.decode() for member in members)
        assert listed == keys, f"the index of master {index}"
        for key in keys:
            found.setdefault(key, []).append(str(index))
    return "; ".join(f"{k} on {' '.join(v)}" for k, v in sorted(found.items())) or "nothing"


@contextmanager
def scenario_over(name: str, masters: Sequence[LocalMaster], **settings: Any) -> Iterator[Scenario]:
    """Yield a scenario over these masters, all joined."""
    with joined(name, masters, **settings) as variant:
        yield Scenario(variant, masters)


@pytest.mark.fault(without=("plain DEL",))
@pytest.mark.parametrize("n", [1, 3, 5])
def test_the_life_of_a_lock(name: str, masters: list[LocalMaster], n: int) -> None:
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    with scenario_over(name, masters[:n]) as scenario:
        scenario.acquire("A", "order:1")
        scenario.look()
        scenario.acquire("B", "order:1")
        scenario.acquire("B", "order:2")
        scenario.look()
        scenario.extend("A")
        scenario.release("A")
        scenario.look()
        scenario.release("A")
        scenario.extend("A")
        scenario.acquire("C", "order:1")
        scenario.release("A")
        scenario.look()
        scenario.release("C")
        scenario.release("B")
        scenario.look()
    assert scenario.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "B takes order:1: ResourceLocked held by another client for # s",
        "B takes order:2: held",
        f"order:1 on {everywhere}; order:2 on {everywhere}",
        "A extends: renewed",
        "A releases: True",
        f"order:2 on {everywhere}",
        "A releases: False",
        "A extends: lost forgot the lock",
        "C takes order:1: held",
        "A releases: False",
        f"order:1 on {everywhere}; order:2 on {everywhere}",
        "C releases: True",
        "B releases: True",
        "nothing",
    ]


# Each takes seconds, so by day only one of them runs.
@pytest.mark.fault(without=("all must agree", "a release overtakes"))
@pytest.mark.parametrize(
    ("fault", "down", "n"),
    [
        ("refuses", 1, 3),
        ("refuses", 2, 5),
        pytest.param("hangs", 2, 5, marks=pytest.mark.slow),
    ],
)
def test_a_minority_does_not_answer(
    name: str, fault: str, down: int, n: int, masters: list[LocalMaster]
) -> None:
    up = " ".join(str(index) for index in range(down + 1, n + 1))
    fail, come_back = (
        (LocalMaster.kill, LocalMaster.start)
        if fault == "refuses"
        else (LocalMaster.pause, LocalMaster.resume)
    )
    with scenario_over(name, masters[:n], **SOON if fault == "hangs" else {}) as scenario:
        for master in masters[:down]:
            fail(master)
        scenario.acquire("A", "order:1")
        scenario.look()
        scenario.acquire("B", "order:1")
        scenario.extend("A")
        scenario.release("A")
        scenario.look()
        for master in masters[:down]:
            come_back(master)
        scenario.wait_clean()
    assert scenario.lines == [
        "A takes order:1: held",
        f"order:1 on {up}",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A extends: renewed",
        "A releases: True",
        "nothing",
    ]


@pytest.mark.slow
@pytest.mark.fault(
    without=(
        "a late reply costs its link",
        "a waiter asks again without an answer",
    )
)
def test_a_minority_is_slow(name: str, masters: list[LocalMaster]) -> None:
    down, n = 2, 5
    with behind(masters[:down]) as proxies:
        urls = [proxy.url for proxy in proxies] + [m.url for m in masters[down:n]]
        with scenario_over(name, masters[:n], urls=urls, master_timeout=0.4) as scenario:
            for proxy in proxies:
                proxy.delay_down = 0.8
            scenario.acquire("A", "order:1")
            scenario.acquire("B", "order:1")
            scenario.extend("A")
            scenario.release("A")
            scenario.acquire("B", "order:1")
            scenario.release("B")
            for proxy in proxies:
                proxy.delay_down = 0.0
            scenario.wait_clean()
    assert scenario.lines == [
        "A takes order:1: held",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A extends: renewed",
        "A releases: True",
        "B takes order:1: held",
        "B releases: True",
    ]


@pytest.mark.fault(without=("a release with no link is lost",))
@pytest.mark.parametrize(("down", "n"), [(1, 3), (2, 5)])
def test_a_minority_is_cut_off_after_it_executed(
    name: str, masters: list[LocalMaster], down: int, n: int
) -> None:
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    with behind(masters[:down]) as proxies:
        urls = [proxy.url for proxy in proxies] + [m.url for m in masters[down:n]]
        # Half of this is how long a thread waits before it reads on behalf of threads that left.
        with scenario_over(name, masters[:n], urls=urls, master_timeout=1.0) as scenario:
            for proxy in proxies:
                proxy.lose_replies = True
            scenario.acquire("A", "order:1")
            for proxy in proxies:
                assert proxy.lost.wait(60)
            scenario.variant.wait_gone(*range(down))
            scenario.look()
            scenario.release("A")
            for proxy in proxies:
                proxy.lose_replies = False
            scenario.wait_clean()
            scenario.acquire("B", "order:1")
            scenario.look()
            scenario.release("B")
            scenario.look()
    assert scenario.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "A releases: True",
        "B takes order:1: held",
        f"order:1 on {everywhere}",
        "B releases: True",
        "nothing",
    ]


@pytest.mark.slow
@pytest.mark.fault(without=("quorum of those that are up",))
@pytest.mark.parametrize(("down", "n"), [(2, 3), (3, 5), (2, 4)])
def test_a_majority_is_down(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    with scenario_over(name, masters[:n]) as scenario:
        scenario.acquire("A", "order:1")
        scenario.look()
        for master in masters[:down]:
            master.kill()
        refused = "refused the connection"
        with suppress(NotAcquired):
            scenario.variant.acquire(
                "warm-up"
            )  # threads notice only when they have something to say
        until(
            lambda: all(m.reason == refused for m in scenario.variant.links.masters[:down]),
            "the dead masters are known to be dead",
        )
        scenario.acquire("B", "order:2")
        scenario.extend("A")
        scenario.look()
        scenario.release("A")
        scenario.look()
        for master in masters[:down]:
            master.start()
        scenario.wait_clean()
        scenario.acquire("B", "order:2")
        scenario.release("B")
    everywhere = " ".join(str(index) for index in range(1, n + 1))
    up = " ".join(str(index) for index in range(down + 1, n + 1))
    assert scenario.lines == [
        "A takes order:1: held",
        f"order:1 on {everywhere}",
        "B takes order:2: QuorumUnreachable refused the connection",
        "A extends: unknown",
        f"order:1 on {up}",
        "A releases: None",
        "nothing",
        "B takes order:2: held",
        "B releases: True",
    ]


@pytest.mark.slow
def test_a_majority_hangs_unnoticed(name: str, masters: list[LocalMaster]) -> None:
    down, n = 3, 5
    with scenario_over(name, masters[:n], **SOON) as scenario:
        for master in masters[:down]:
            master.pause()
        scenario.acquire("A", "order:1")
        scenario.look()
        for master in masters[:down]:
            master.resume()
        scenario.wait_clean()
    assert scenario.lines == [
        "A takes order:1: QuorumUnreachable did not answer within # s",
        "nothing",
    ]


@pytest.mark.fault(without=("NOSCRIPT is a failure",))
def test_the_scripts_are_gone_each_time(name: str, masters: list[LocalMaster]) -> None:
    def flush_scripts() -> None:
        for master in masters[:3]:
            with master.client() as client:
                client.script_flush()

    with scenario_over(name, masters[:3]) as scenario:
        flush_scripts()
        scenario.acquire("A", "order:1")
        flush_scripts()
        # A master that answers after the verdict may only have been asked to load a script.
        scenario.extend("A", votes=False)
        flush_scripts()
        scenario.acquire("B", "order:1")
        flush_scripts()
        scenario.release("A")
        scenario.look()
    assert scenario.lines == [
        "A takes order:1: held",
        "A extends: renewed",
        "B takes order:1: ResourceLocked held by another client for # s",
        "A releases: True",
        "nothing",
    ]


def test_a_restarted_master_gets_the_lock_again(name: str, masters: list[LocalMaster]) -> None:
    with scenario_over(name, masters[:3]) as scenario:
        scenario.acquire("A", "order:1")
        scenario.look()
        masters[2].restart()
        scenario.variant.start()  # threads notice only when they have something to say
        scenario.variant.wait_usable(3)
        scenario.look()
        scenario.extend("A")
        scenario.look()
        scenario.extend("A")
        scenario.look()
        scenario.release("A")
        scenario.look()
    assert scenario.lines == [
        "A takes order:1: held",
        "order:1 on 1 2 3",
        "order:1 on 1 2",
        "A extends: renewed forgot the lock",
        "order:1 on 1 2",
        "A extends: renewed healed: counts from the next extension",
        "order:1 on 1 2 3",
        "A releases: True",
        "nothing",
    ]


@pytest.mark.fault(without=("any marker will do",))
def test_flushed_masters_lose_the_lock(name: str, masters: list[LocalMaster]) -> None:
    with scenario_over(name, masters[:3]) as scenario:
        scenario.acquire("A", "order:1")
        scenario.variant.settle()
        for master in masters[:2]:
            with master.client() as client:
                client.flushall()
        scenario.acquire("B", "order:1")
        scenario.variant.settle()
        scenario.variant.wait_usable(3)
        scenario.extend("A")
        scenario.look()
        scenario.release("A")
        scenario.look()
    assert scenario.lines == [
        "A takes order:1: held",
        "B takes order:1: QuorumUnreachable not trusted yet",
        "A extends: lost forgot the lock",
        "order:1 on 3",
        "A releases: False",
        "nothing",
    ]
