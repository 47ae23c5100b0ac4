"""Clients that are stopped, suspended, starved, or have a wrong wall clock, with real masters."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redlock_django import lock
from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import LockLost
from redlock_django.wire.clock import clock, wall_ns
from tests.app.ways import SyncWay, in_both_ways
from tests.engine.lua_mutation import lua, mutate_script
from tests.live.clocks import WALL, Clock
from tests.live.left_over import granted, locked
from tests.live.removed_rules import guards_both
from tests.live.traffic import left
from tests.programs import started
from tests.timeouts import patient_site
from tests.waiting import until
from tests.wire.proxy import behind
from tests.wire.variants import both, joined

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

MINUTE = 60.0


STOPPED_CLIENT = """
import sys
from redlock_django.engine import attempt
from redlock_django.engine.errors import NotAcquired
from tests.wire.variants import open_variant, make_backend
if sys.argv[1] == "unguarded":
    attempt.valid_until = lambda ttl, started: float("inf")
with open_variant(sys.argv[2], make_backend(sys.argv[3:], master_timeout=8.0)) as variant:
    variant.start()
    variant.wait_usable(3)
    variant.settle()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        variant.acquire("order:1", ttl=0.4)
        print("held")
    except NotAcquired:
        print("not held")
"""


@pytest.mark.slow
@pytest.mark.fault
@guards_both
def test_a_client_that_is_stopped_before_it_reads_the_replies(
    name: str, guarded: bool, masters: list[LocalMaster]
) -> None:
    """The client continues when its lock has expired, and reads that every master granted it."""
    how, ending = ("guarded", "not held\n") if guarded else ("unguarded", "held\n")
    with ExitStack() as stack:
        proxies = stack.enter_context(behind(masters[:3]))
        urls = [proxy.url for proxy in proxies]
        client = stack.enter_context(started(STOPPED_CLIENT, how, name, *urls))
        for proxy in proxies:
            proxy.hold()
        client.say("go")
        until(lambda: granted(masters[:3], "order:1"), "all masters have granted the lock")
        client.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
        for proxy in proxies:
            proxy.let_go()
        until(lambda: not locked(masters[:3]), "all locks have expired")
        client.send_signal(signal.SIGCONT)
        out, _ = client.communicate(timeout=90)
        assert out == ending


@pytest.mark.fault
@guards_both
def test_an_extension_that_is_answered_after_the_old_deadline(
    name: str, guarded: bool, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masters still have the lock, but a lease that was past its deadline stays lost."""
    with behind(masters[:3]) as proxies, ThreadPoolExecutor(1) as pool:
        urls = [proxy.url for proxy in proxies]
        long = {"master_timeout": 8.0, "max_ttl": 60.0}
        with joined(name, masters[:3], urls=urls, **long) as variant:
            lease = variant.acquire("order:1", ttl=30.0)
            variant.settle()
            for proxy in proxies:
                proxy.hold()

            def extended_everywhere() -> bool:
                return all(pttl(master) > 30_000 for master in masters[:3])

            for seconds in (0.4, 2.0, 10.0):  # on a busy machine, sending it may take longer
                deadline = clock() + seconds
                until_then = replace(lease, until=deadline if guarded else math.inf)
                extended = pool.submit(variant.extend, until_then, 60.0)
                until(
                    lambda: extended_everywhere() or extended.done(),  # noqa: B023
                    "all masters have extended the lock",
                )
                if not extended.done():
                    break
            assert extended_everywhere(), "it was ended before it was sent"
            until(lambda: clock() >= deadline, "the old deadline has passed")
            for proxy in proxies:
                proxy.let_go()
            state, _ = extended.result(60)
            assert state is (LeaseState.LOST if guarded else LeaseState.RENEWED)
            variant.release(lease)
            until(lambda: not left(masters[:3]), "all locks are deleted")


def pttl(master: LocalMaster) -> int:
    with master.client() as client:
        return int(client.pttl("redlock:lock:order:1"))


def hold_gil(seconds: float) -> None:
    """Block all other threads of this process: make one long C call that keeps the GIL."""
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


@pytest.mark.fault(without=("only masters decide that a lock is over",))
@in_both_ways
async def test_a_renewal_that_never_gets_to_run(
    way: SyncWay, masters: list[LocalMaster], settings: Settings
) -> None:
    """The holder notices by its own clock, before any master has replied."""
    settings.REDLOCK = patient_site(masters[:3], 0.5, TTL=0.5)
    held = await way.acquire(lock("order:1", wait=60, renew=True))
    hold_gil(0.6)
    with pytest.raises(LockLost):
        held.ensure_held()


@pytest.mark.fault
@both
@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_a_client_whose_wall_clock_is_wrong_does_no_harm(
    name: str, wrong: int, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masters limit its proposed fence by their clocks; leases do not use the wall clock."""
    with joined(name, masters[:3]) as variant:
        with monkeypatch.context() as patch:
            patch.setattr(WALL, lambda: wall_ns() + wrong * 1_000_000_000)
            lease = variant.acquire("order:1")
            variant.settle()
            assert abs(lease.fences[0] - wall_ns() // 1000) < 60_000_000
            assert variant.extend(lease)[0] is LeaseState.RENEWED
            assert variant.release(lease) is True
        after = variant.acquire("order:1")
        assert after.fences > lease.fences
        assert variant.release(after) is True


@pytest.mark.fault
@both
def test_without_the_fence_limit_a_client_an_hour_ahead_is_refused(
    name: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    clamped = "math.min(math.max(proposed, now - SKEW), now + SKEW)"
    mutate_script(monkeypatch, "acquire", lua(clamped, "proposed"))
    with joined(name, masters[:3]) as variant:
        monkeypatch.setattr(WALL, lambda: wall_ns() + 3600 * 1_000_000_000)
        with pytest.raises(QuorumUnreachable, match="its fence is ahead of its clock"):
            variant.acquire("order:1")


SUSPENDED_CLIENT = """
import sys, time
if sys.argv[1] == "monotonic":
    del time.CLOCK_BOOTTIME
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.links.master import Master
from tests.wire.variants import open_variant, make_backend
with open_variant(sys.argv[2], make_backend(sys.argv[3:])) as variant:
    lease = variant.acquire("order:1", wait=60.0)
    print("ready", flush=True)
    sys.stdin.readline()
    print(clock() < lease.until, variant.extend(lease)[0].value)
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("name", "by", "ending"),
    [
        ("threads", "boottime", "False lost\n"),
        ("loop", "boottime", "False lost\n"),
        ("loop", "monotonic", "True renewed\n"),
    ],
)
def test_a_machine_that_was_suspended(
    name: str, by: str, ending: str, shim: Path, tmp_path: Path, masters: list[LocalMaster]
) -> None:
    """CLOCK_MONOTONIC does not count the time of a suspend, which CLOCK_BOOTTIME does."""
    clock_file = Clock(tmp_path / "clock")
    clock_file.set()
    env = {"LD_PRELOAD": str(shim), "CLOCK_SHIFT": str(clock_file.path)}
    urls = [master.url for master in masters[:3]]
    with started(SUSPENDED_CLIENT, by, name, *urls, env=env) as client:
        clock_file.set(boot=MINUTE)
        out, _ = client.communicate("wake\n", timeout=90)
    assert out == ending
