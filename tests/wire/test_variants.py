"""Both drivers run the same scenarios, with the same outcomes and the same keys on the masters."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.engine.validity import LeaseState
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
TTL = 60.0
"""No lock ends while a scenario runs, however slow the machine is."""


class Scenario:
    """Runs scripts with a variant: each line is a step and its outcome, or the locks there are.

    "A extends: renewed" is a step of client A; a line without a client is what all masters have,
    once every reply has come in.
    """

    def __init__(self, variant: Variant, masters: Sequence[LocalMaster]) -> None:
        self.variant = variant
        self.masters = masters
        self.leases: dict[str, RedlockLease] = {}

    def run(self, script: str) -> None:
        """Run a script, and require every outcome."""
        for line in script.strip().splitlines():
            step, _, outcome = line.strip().partition(": ")
            assert self._outcome(step) == (outcome or step), line

    def _outcome(self, step: str) -> str:
        match step.split():
            case who, "takes", names:
                return self._acquire(who, *names.split("+"))
            case who, "extends":
                state, self.leases[who] = self.variant.extend(self.leases[who], TTL)
                self.variant.settle()  # the outcome includes votes after the verdict
                return f"{state.value} {reasons(self.leases[who].tally)}".strip()
            case who, "releases":
                return str(self.variant.release(self.leases[who]))
        self.variant.settle()
        return locks_on(self.masters)

    def _acquire(self, who: str, *names: str) -> str:
        try:
            self.leases[who] = self.variant.acquire(*names, ttl=TTL)
        except NotAcquired as error:
            said = kinds(error.tally, whole=isinstance(error, QuorumUnreachable))
            return f"{type(error).__name__} {said}"
        return "held"

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
    with joined(name, masters, max_ttl=TTL, **settings) as variant:
        yield Scenario(variant, masters)


def numbers(first: int, last: int) -> str:
    return " ".join(str(index) for index in range(first, last + 1))


@pytest.mark.fault(without=("plain DEL",))
@pytest.mark.parametrize("n", [1, 3, 5])
def test_the_life_of_a_lock(name: str, masters: list[LocalMaster], n: int) -> None:
    all_of_them = numbers(1, n)
    with scenario_over(name, masters[:n]) as scenario:
        scenario.run(f"""
            A takes order:1: held
            order:1 on {all_of_them}
            B takes order:1: ResourceLocked held by another client for # s
            B takes order:2: held
            order:1 on {all_of_them}; order:2 on {all_of_them}
            A extends: renewed
            A releases: True
            order:2 on {all_of_them}
            A releases: False
            A extends: lost forgot the lock
            C takes order:1: held
            A releases: False
            order:1 on {all_of_them}; order:2 on {all_of_them}
            C releases: True
            B releases: True
            nothing
        """)


# Each takes seconds, so by day only one of them runs.
@pytest.mark.fault(without=("all must agree",))
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
    fail, come_back = (
        (LocalMaster.kill, LocalMaster.start)
        if fault == "refuses"
        else (LocalMaster.pause, LocalMaster.resume)
    )
    with scenario_over(name, masters[:n], **SOON if fault == "hangs" else {}) as scenario:
        for master in masters[:down]:
            fail(master)
        scenario.run(f"""
            A takes order:1: held
            order:1 on {numbers(down + 1, n)}
            B takes order:1: ResourceLocked held by another client for # s
            A extends: renewed
            A releases: True
            nothing
        """)
        for master in masters[:down]:
            come_back(master)
        scenario.wait_clean()


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
            scenario.run("""
                A takes order:1: held
                B takes order:1: ResourceLocked held by another client for # s
                A extends: renewed
                A releases: True
                B takes order:1: held
                B releases: True
            """)
            for proxy in proxies:
                proxy.delay_down = 0.0
            scenario.wait_clean()


@pytest.mark.fault(without=("a release with no link is lost",))
@pytest.mark.parametrize(("down", "n"), [(1, 3), (2, 5)])
def test_a_minority_is_cut_off_after_it_executed(
    name: str, masters: list[LocalMaster], down: int, n: int
) -> None:
    with behind(masters[:down]) as proxies:
        urls = [proxy.url for proxy in proxies] + [m.url for m in masters[down:n]]
        # Half of this is how long a thread waits before it reads on behalf of threads that left.
        with scenario_over(name, masters[:n], urls=urls, master_timeout=1.0) as scenario:
            for proxy in proxies:
                proxy.lose_replies = True
            scenario.run("A takes order:1: held")
            for proxy in proxies:
                assert proxy.lost.wait(60)
            scenario.variant.wait_gone(*range(down))
            scenario.run(f"""
                order:1 on {numbers(1, n)}
                A releases: True
            """)
            for proxy in proxies:
                proxy.lose_replies = False
            scenario.wait_clean()
            scenario.run(f"""
                B takes order:1: held
                order:1 on {numbers(1, n)}
                B releases: True
                nothing
            """)


@pytest.mark.slow
@pytest.mark.fault(without=("quorum of those that are up",))
@pytest.mark.parametrize(("down", "n"), [(2, 3), (3, 5), (2, 4)])
def test_a_majority_is_down(name: str, masters: list[LocalMaster], down: int, n: int) -> None:
    with scenario_over(name, masters[:n]) as scenario:
        scenario.run(f"""
            A takes order:1: held
            order:1 on {numbers(1, n)}
        """)
        for master in masters[:down]:
            master.kill()
        refused = "refused the connection"
        with suppress(NotAcquired):
            scenario.variant.acquire("warm-up")  # threads notice only when they send
        until(
            lambda: all(m.reason == refused for m in scenario.variant.links.masters[:down]),
            "the dead masters are known to be dead",
        )
        scenario.run(f"""
            B takes order:2: QuorumUnreachable refused the connection
            A extends: unknown
            order:1 on {numbers(down + 1, n)}
            A releases: None
            nothing
        """)
        for master in masters[:down]:
            master.start()
        scenario.wait_clean()
        scenario.run("""
            B takes order:2: held
            B releases: True
        """)


@pytest.mark.slow
def test_a_majority_hangs_unnoticed(name: str, masters: list[LocalMaster]) -> None:
    down, n = 3, 5
    with scenario_over(name, masters[:n], **SOON) as scenario:
        for master in masters[:down]:
            master.pause()
        scenario.run("""
            A takes order:1: QuorumUnreachable did not answer within # s
            nothing
        """)
        for master in masters[:down]:
            master.resume()
        scenario.wait_clean()


@pytest.mark.fault(without=("NOSCRIPT is a failure",))
def test_the_scripts_are_gone_each_time(name: str, masters: list[LocalMaster]) -> None:
    def flush_scripts() -> None:
        for master in masters[:3]:
            with master.client() as client:
                client.script_flush()

    with scenario_over(name, masters[:3]) as scenario:
        flush_scripts()
        scenario.run("A takes order:1: held")
        flush_scripts()
        state, scenario.leases["A"] = scenario.variant.extend(scenario.leases["A"])
        # A master that answers after the verdict may only have been asked to load a script.
        assert state is LeaseState.RENEWED
        scenario.variant.settle()
        flush_scripts()
        scenario.run("B takes order:1: ResourceLocked held by another client for # s")
        flush_scripts()
        scenario.run("""
            A releases: True
            nothing
        """)


def test_a_restarted_master_gets_the_lock_again(name: str, masters: list[LocalMaster]) -> None:
    with scenario_over(name, masters[:3]) as scenario:
        scenario.run("""
            A takes order:1: held
            order:1 on 1 2 3
        """)
        masters[2].restart()
        scenario.variant.start()  # threads notice only when they have something to say
        scenario.variant.wait_usable(3)
        scenario.run("""
            order:1 on 1 2
            A extends: renewed forgot the lock
            order:1 on 1 2
            A extends: renewed healed: counts from the next extension
            order:1 on 1 2 3
            A releases: True
            nothing
        """)


@pytest.mark.fault(without=("any marker will do",))
def test_flushed_masters_lose_the_lock(name: str, masters: list[LocalMaster]) -> None:
    with scenario_over(name, masters[:3]) as scenario:
        scenario.run("A takes order:1: held")
        scenario.variant.settle()
        for master in masters[:2]:
            with master.client() as client:
                client.flushall()
        scenario.run("B takes order:1: QuorumUnreachable not trusted yet")
        scenario.variant.settle()
        scenario.variant.wait_usable(3)
        scenario.run("""
            A extends: lost forgot the lock
            order:1 on 3
            A releases: False
            nothing
        """)
