"""Master outages: each is reported once, does not delay locks, and is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.exceptions import QuorumUnreachable
from redlock_django.locking.lock import lock
from redlock_django.locking.reports import MasterCounts, counters
from redlock_django.locking.services import locks
from redlock_django.signals import master_down
from tests.timeouts import patient_site
from tests.waiting import until
from tests.wire.variants import Variant, open_variant, threads_by_day, trust

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

Configure = Callable[..., RedisBackend]


@pytest.fixture
def configure(masters: list[LocalMaster], settings: Settings) -> Configure:
    def set_up(**section: Any) -> RedisBackend:
        settings.REDLOCK = patient_site(masters, **section)
        backend = locks["default"].backend
        assert isinstance(backend, RedisBackend)
        return backend

    return set_up


def name_of(master: LocalMaster) -> str:
    return f"127.0.0.1:{master.port}"


def counts_of(master: LocalMaster) -> MasterCounts:
    return counters["default"].masters[name_of(master)]


def work(variant: Variant, times: int = 5) -> None:
    for _ in range(times):
        variant.release(variant.acquire("order:1", wait=60.0))


@pytest.mark.slow
@threads_by_day
def test_an_outage_and_its_end_are_reported_once_each(
    name: str,
    masters: list[LocalMaster],
    configure: Configure,
    outages: list[tuple[str, str, str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = masters[1]
    with caplog.at_level(logging.INFO), open_variant(name, configure()) as variant:
        work(variant)
        variant.wait_usable(5)
        assert outages == []
        dead.kill()
        work(variant)
        until(lambda: outages, "the outage is reported")
        until(lambda: counts_of(dead).errors >= 3, "more attempts to connect")
        work(variant)
        assert counts_of(dead).down
        dead.start()
        until(lambda: len(outages) > 1, "the end of the outage is reported")
        variant.wait_usable(5)
        work(variant)
    [(first, failed, reason), (second, recovered, _)] = outages
    assert (first, second) == ("down", "up")
    assert failed == recovered == name_of(dead)
    assert "refused the connection" in reason or "reset" in reason
    assert not counts_of(dead).down
    assert [m for m in masters if counts_of(m).errors] == [dead]
    [back] = [r for r in caplog.records if "is back" in r.getMessage()]
    assert (back.levelno, back.__dict__["master"]) == (logging.INFO, failed)


@pytest.mark.slow
@pytest.mark.fault
@threads_by_day
def test_a_hung_master_is_down_until_it_resumes(
    name: str, masters: list[LocalMaster], configure: Configure, outages: list[tuple[str, str, str]]
) -> None:
    with open_variant(name, configure(MASTER_TIMEOUT=0.5)) as variant:
        work(variant)
        variant.wait_usable(5)
        masters[3].pause()
        work(variant)
        until(lambda: outages, "the outage is reported")
        assert "did not answer" in outages[0][2]
        masters[3].resume()
        until(lambda: len(outages) > 1, "the end of the outage is reported")
    assert [what for what, _, _ in outages] == ["down", "up"]


@pytest.mark.fault(without=("a lost link stays lost",))
@threads_by_day
def test_a_quiet_reconnect_is_no_outage(
    name: str, masters: list[LocalMaster], configure: Configure, outages: list[tuple[str, str, str]]
) -> None:
    with open_variant(name, configure()) as variant:
        work(variant)
        variant.wait_usable(5)
        link = variant.links.masters[0].link
        with masters[0].client() as client:
            for kind in ("NORMAL", "PUBSUB"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "YES")

        def noticed() -> bool:
            work(variant)
            return variant.links.masters[0].link is not link

        until(noticed, "the link is lost")
        variant.wait_usable(5)
        work(variant)
    assert outages == []
    assert counts_of(masters[0]) == MasterCounts()


def test_short_lived_event_loops_report_an_outage_once(
    masters: list[LocalMaster], configure: Configure, outages: list[tuple[str, str, str]]
) -> None:
    """Under WSGI every async view runs in its own event loop, and each finds the master dead."""

    async def view() -> None:
        before = counts_of(masters[0]).errors
        async with lock("order:1", wait=60):
            while counts_of(masters[0]).errors == before:  # noqa: ASYNC110 - a thread counts it
                await asyncio.sleep(0.001)

    configure()
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    for master in masters:
        trust(master, backend.deployment)
    masters[0].kill()
    for _ in range(5):
        asyncio.run(view())
    until(lambda: outages, "the outage is reported")
    assert [what for what, _, _ in outages] == ["down"]
    masters[0].start()
    with lock("order:1", wait=60):
        until(lambda: len(outages) == 2, "the end of the outage is reported")
    assert outages[1][0] == "up"


@pytest.mark.slow
def test_a_restarted_master_is_reported_as_up_but_not_counted_yet(
    masters: list[LocalMaster], configure: Configure, outages: list[tuple[str, str, str]]
) -> None:
    def outage_reported() -> bool:
        with pytest.raises(QuorumUnreachable):
            variant.acquire("order:1")
        return bool(outages)

    with open_variant("threads", configure(RESTART_DELAY="auto")) as variant:
        outage_reported()
        variant.wait_joined()
        masters[0].kill()
        until(outage_reported, "the outage is reported")
        masters[0].start()
        until(lambda: len(outages) > 1, "the end of the outage is reported")
    assert "trusted in" in outages[1][2]


@threads_by_day
def test_receivers_may_take_locks_fail_and_exit(
    name: str, masters: list[LocalMaster], configure: Configure, outages: list[tuple[str, str, str]]
) -> None:
    taken = []

    def take(master: str, **_: Any) -> None:
        with lock(f"alarm:{master}", wait=60):
            taken.append(master)

    def fail(**_: Any) -> None:
        raise ValueError

    def leave(**_: Any) -> None:
        raise SystemExit

    receivers = (take, fail, leave)
    for receiver in receivers:
        master_down.connect(receiver)
    with open_variant(name, configure()) as variant:
        work(variant)
        variant.wait_usable(5)
        masters[2].kill()
        work(variant)
        until(lambda: taken, "the receiver has acquired its lock")
        masters[2].start()
        variant.wait_usable(5)
    assert taken == [name_of(masters[2])]
