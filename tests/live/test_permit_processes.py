"""Names that several processes hold at once, on real masters: killed holders, killed masters."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from redlock_django import lock
from redlock_django.exceptions import LimitReached
from tests.live.left_over import nothing_left
from tests.live.linked import linked
from tests.programs import Program, started
from tests.timeouts import patient_site
from tests.waiting import stalls, until

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_deadlock")]
R = "export"
TTL = 30.0  # no lock expires on a busy machine

HOLDER = """
    with lock("export", limit=2) as held:
        print("held", flush=True)
        sys.stdin.readline()
        held.release()
        print("released", flush=True)
        sys.stdin.readline()
"""
# Each thread notes how many hold the name, in a server that no lock is on. Until as many have held
# it as may, a hold lasts longer than the way of a slot to the next holder. But it ends: the first
# waiter may have a lower limit, and does not take the last slot.
WORKER = """
    import threading, time
    from redis import Redis
    limit, count = int(sys.argv[1]), Redis.from_url(sys.argv[2])
    note = count.register_script(
        "local now = redis.call('INCR', 'now') "
        "if now > tonumber(redis.call('GET', 'most') or 0) then redis.call('SET', 'most', now) end"
    )
    def work():
        for _ in range(int(sys.argv[3])):
            with lock("export", limit=limit, wait=60) as held:
                note()
                for _ in range(50):
                    if int(count.get("most")) >= int(sys.argv[4]):
                        break
                    time.sleep(0.001)
                held.ensure_held()
                count.decr("now")
                count.incr("rounds")
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def _on_real_masters(masters: list[LocalMaster], settings: Settings) -> None:
    settings.REDLOCK = patient_site(masters[:3], TTL, TTL=TTL, MAX_HOLD=TTL)
    linked()


@pytest.mark.slow
def test_the_permit_of_a_killed_holder_comes_back_after_its_ttl(
    masters: list[LocalMaster],
) -> None:
    site = patient_site(masters[:3], 4, TTL=4)
    with ExitStack() as stack:
        holders = [stack.enter_context(started(HOLDER, ready="held", redlock=site)) for _ in "ab"]
        with pytest.raises(LimitReached):
            lock(R, limit=2).acquire()
        holders[0].kill()
        killed = time.monotonic()
        with stalls() as late, lock(R, limit=2, wait=60) as held:
            assert time.monotonic() - killed - late() <= 4 + 1.5
            with ThreadPoolExecutor(1) as thread, pytest.raises(LimitReached):
                thread.submit(lock(R, limit=2).acquire).result(60)  # the other one is renewed
            held.ensure_held()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(3, 3, 3), (3, 2, 3)], ids=["one limit", "a deployment"])
def test_processes_and_threads_hold_a_name_as_often_as_its_limit(
    limits: tuple[int, ...], masters: list[LocalMaster]
) -> None:
    """Meanwhile a master is killed, and comes back without its locks."""
    rounds = 40
    with masters[4].client() as count, ExitStack() as stack:
        count.delete("now", "most", "rounds")
        site = patient_site(masters[:3], TTL=TTL)
        common = (masters[4].url, str(rounds), str(max(limits)))
        workers: list[Program] = [
            stack.enter_context(started(WORKER, str(limit), *common, redlock=site))
            for limit in limits
        ]
        for worker in workers:
            worker.say("begin")
        until(lambda: _read(count, "rounds") > rounds, "they work")
        masters[2].kill()
        before = _read(count, "rounds")
        until(lambda: _read(count, "rounds") > before + rounds, "they work without it")
        masters[2].start()
        for worker in workers:
            assert worker.hear() == "done"
        assert _read(count, "most") == 3
        assert _read(count, "rounds") == 3 * rounds * len(limits)
        assert _read(count, "now") == 0
    nothing_left(masters[:3])


def _read(client: Redis, name: str) -> int:
    return int(client.get(name) or 0)
