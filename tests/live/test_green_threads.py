"""Green threads: gevent works as threads do; eventlet is refused with an error that says why."""

from __future__ import annotations

import select
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from redlock_django import lock
from redlock_django.exceptions import InvalidRedlock

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live

PROCESS = """
    from gevent import monkey
    monkey.patch_all()
    import sys, threading, time
    import django
    from django.conf import settings
    masters = {"MASTERS": sys.argv[1].split(","), "RESTART_DELAY": 0}
    masters |= {"TTL": 2, "MASTER_TIMEOUT": 0.9}
    settings.configure(INSTALLED_APPS=["redlock_django"], REDLOCK={"default": masters})
    django.setup()
    from redlock_django import lock

    inside = [0]
    def work(seconds):
        for _ in range(5):
            with lock("order:1", wait=60):
                inside[0] += 1
                assert inside[0] == 1
                time.sleep(seconds)
                inside[0] -= 1
    greenlets = [threading.Thread(target=work, args=(0.002,)) for _ in range(8)]
    for each in greenlets: each.start()
    for each in greenlets: each.join()
    with lock("order:2", wait=60) as held:
        time.sleep(2.5)  # for longer than the TTL: a greenlet renews it
        held.ensure_held()
    print("done")
"""


def test_greenlets_of_gevent_exclude_each_other_and_renew(masters: list[LocalMaster]) -> None:
    pytest.importorskip("gevent", reason="gevent is not installed")
    urls = ",".join(master.url for master in masters[:3])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROCESS), urls],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr


def test_a_process_without_poll_is_refused(
    masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because eventlet.monkey_patch() removes it."""
    settings.REDLOCK = {"default": {"MASTERS": [master.url for master in masters[:3]]}}
    monkeypatch.delattr(select, "poll")
    with pytest.raises(InvalidRedlock, match=r"eventlet\.monkey_patch.*gevent, threads or asyncio"):
        lock("order:1").acquire()
