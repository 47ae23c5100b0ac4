"""Real masters that die, hang or answer slowly: under traffic, at the start and at the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from redlock_django.engine.errors import QuorumUnreachable
from tests.live.traffic import Traffic, all_freed, left
from tests.programs import started
from tests.waiting import until
from tests.wire.proxy import FaultProxy
from tests.wire.variants import SOON, VARIANTS, both, joined, make_backend, open_variant, trust

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live


@pytest.mark.slow
@pytest.mark.fault(without=("a lost link is not reported",))
def test_locks_are_acquired_while_two_of_five_masters_fail_in_every_way(
    masters: list[LocalMaster], caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(masters[1].port))
        urls = [masters[0].url, proxy.url, *(master.url for master in masters[2:])]
        # A restart delay that covers the largest TTL, like "auto".
        deployment = {"max_ttl": 1.0, "max_clock_skew": 0.2, "restart_delay": 2.1}
        backend = make_backend(urls, **deployment, master_timeout=0.15)  # type: ignore[arg-type]
        for master in masters:
            trust(master, backend.deployment)
        variants = [stack.enter_context(open_variant(name, backend)) for name in VARIANTS]
        with Traffic(variants, workers=6, resources=2) as traffic:
            traffic.wait_for_wins(20, "all masters are healthy")
            masters[0].pause()
            proxy.delay_down = 0.2
            traffic.wait_for_wins(20, "one master hangs and one is slow")
            masters[0].resume()
            proxy.delay_down = 0.0
            masters[0].kill()
            proxy.lose_replies = True
            traffic.wait_for_wins(20, "one master is dead and one runs commands but never replies")
            masters[0].start()
            proxy.lose_replies = False
            proxy.refuse()
            traffic.wait_for_wins(20, "one master restarted empty and one refuses connections")
            proxy.accept()
            proxy.slices = True
            proxy.cut()
            traffic.wait_for_wins(
                20, "one master was disconnected and replies in pieces of one byte"
            )
            proxy.slices = False
            for master in masters[:2]:
                with master.client() as client:
                    client.script_flush()
            masters[1].pause()
            traffic.wait_for_wins(20, "scripts were flushed and another master hangs")
            masters[1].resume()
            traffic.wait_for_wins(20, "all masters are back")
        assert traffic.trouble == []
        all_freed(variants, masters)
    assert " a reply " not in caplog.text, "each reply reaches its own round"


@both
def test_the_deciding_master_is_killed_in_the_middle_of_a_round(
    name: str, masters: list[LocalMaster]
) -> None:
    with (
        joined(name, masters[:3], master_timeout=8.0) as variant,
        ThreadPoolExecutor(1) as pool,
    ):
        for master in masters[:2]:
            master.pause()
        taker = pool.submit(variant.acquire, "order:1")
        until(lambda: left(masters[2:3]), "the third master has granted the lock")
        began = time.monotonic()
        for master in masters[:2]:
            master.kill()
        with pytest.raises(QuorumUnreachable):
            taker.result(60)
        assert time.monotonic() - began < 5.0, (
            "the client waited for the timeout although the links had ended"
        )
        until(lambda: not left(masters[2:3]), "the lock of the minority is released")
        for master in masters[:2]:
            master.start()
        variant.wait_usable(3)
        assert not left(masters[:3])


@pytest.mark.fault(without=("a release that a busy master refused is forgotten",))
@both
def test_a_busy_master_is_not_counted_and_its_locks_are_released_when_it_is_ready(
    name: str, masters: list[LocalMaster]
) -> None:
    long = {"max_ttl": 60.0}  # only a release deletes a lock in time
    with joined(name, masters[:3], master_timeout=0.5, **long) as variant, ExitStack() as stack:
        first = variant.acquire("order:1", ttl=60.0)
        variant.settle()
        client = stack.enter_context(masters[2].client())
        client.config_set("busy-reply-threshold", "20")
        stack.callback(client.config_set, "busy-reply-threshold", "5000")
        endless = threading.Thread(target=_loop_for_ever, args=(masters[2],))
        endless.start()
        until(lambda: _busy(masters[2]), "the master is busy")
        assert variant.release(first) is True
        second = variant.acquire("order:2", ttl=60.0)
        assert variant.release(second) is True
        with masters[2].client() as killer:
            killer.script_kill()
        endless.join()
        variant.wait_usable(3)
        until(lambda: not left(masters[:3]), "all locks are deleted", seconds=30.0)


def _loop_for_ever(master: LocalMaster) -> None:
    with master.client() as client:
        client.connection_pool.connection_kwargs["socket_timeout"] = 60
        with pytest.raises(Exception, match="kill"):
            client.eval("while true do end", 0)


def _busy(master: LocalMaster) -> bool:
    with master.client() as client:
        try:
            client.get("x")
        except Exception as error:  # noqa: BLE001 - redis-py has no class for it
            return "BUSY" in str(error).upper()
    return False


@pytest.mark.slow
@both
def test_threads_stay_few_with_a_hung_master(name: str, masters: list[LocalMaster]) -> None:
    with joined(name, masters[:3], **SOON) as variant:
        seen: Counter[str] = Counter()
        masters[0].pause()
        for turn in range(80):
            if turn == 40:
                variant.wait_gone(0)
            assert variant.release(variant.acquire("order:1")) is True
            # On a loaded machine, the client may connect to another master again too.
            seen |= Counter(thread.name for thread in threading.enumerate())
        ours = {name: most for name, most in seen.items() if name.startswith("redlock-")}
        assert ours[f"redlock-dial-127.0.0.1:{masters[0].port}"] == 1
        assert set(ours.values()) == {1}, "more than one thread for a job"
        masters[0].resume()


EXIT_PROGRAM = """
import sys
from tests.wire.variants import Loop, Threads, make_backend
held = []
for kind in (Threads, Loop):
    variant = kind(make_backend(sys.argv[1:], connect_timeout=60.0))
    for n in range(10):
        variant.release(variant.acquire("order:1", wait=60.0))
    held.append(variant)
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_promptly_with_a_hung_master(masters: list[LocalMaster]) -> None:
    for master in masters[:3]:
        trust(master, make_backend([one.url for one in masters[:3]]).deployment)
    masters[0].pause()
    urls = [master.url for master in masters[:3]]
    with started(EXIT_PROGRAM, *urls, ready="done") as process:
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert time.monotonic() - began < 30.0
        assert errors == ""
