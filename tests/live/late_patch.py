"""Processes that gevent patches late: after they have imported the whole package, or used it.

    python -m tests.live.late_patch [--used] SETTINGS

SETTINGS is JSON with REDLOCK and DATABASES. The process imports the whole package and is patched. A
child of a process that has used a lock is patched, too, as a worker of `gunicorn --preload -k
gevent` is. Many greenlets of both use locks, at the same time. Writes what the child reports, then
what the process does: "done", or the error. With `--used` there is no child, and the process uses a
lock before the patch.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from typing import Any

import redlock_django
from tests.programs import set_up

APPS = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes"]
GREENLETS = 12
WITHOUT = ("redlock_django.contrib", "redlock_django.testing.plugin")  # they need extras


def import_all() -> None:
    """Import every module of the package, as a site that uses all of it does."""
    for module in pkgutil.walk_packages(redlock_django.__path__, "redlock_django."):
        if not module.name.startswith(WITHOUT):
            importlib.import_module(module.name)


def exclude_each_other(orders: str) -> None:
    """Use one lock in many greenlets, hold another one for longer than its TTL, and lose a third.

    The greenlets sleep inside the lock, so a client that blocked its thread would block the holder.
    `orders` begins the names of the resources.
    """
    import threading
    import time

    from redlock_django import lock, locks
    from redlock_django.signals import lock_lost

    inside: list[int] = []
    lost: list[str] = []

    def work(number: int) -> None:
        for _ in range(3):
            with lock(f"{orders}:1", wait=60):
                inside.append(number)
                time.sleep(0.005)
                assert inside == [number]
                inside.remove(number)

    def note(*, resources: tuple[str, ...], **_: Any) -> None:
        lost.extend(resources)

    lock_lost.connect(note)
    greenlets = [threading.Thread(target=work, args=(number,)) for number in range(GREENLETS)]
    for greenlet in greenlets:
        greenlet.start()
    for greenlet in greenlets:
        greenlet.join()
    ttl = locks["default"].settings.ttl
    with lock(f"{orders}:2", wait=60) as held:
        with contextlib.suppress(redlock_django.LockLost), lock(f"{orders}:3", renew=False):
            time.sleep(ttl * 1.25)
        held.ensure_held()  # a greenlet has renewed it
    assert lost == [f"{orders}:3"], lost
    locks.close()


def use_a_lock() -> None:
    """Use a lock before any patch."""
    from redlock_django import lock

    with lock("order:1", wait=60):
        pass


def patched(orders: str) -> str:
    """Patch this process and use locks; return what to report."""
    importlib.import_module("gevent.monkey").patch_all()
    try:
        exclude_each_other(orders)
    except redlock_django.InvalidRedlock as error:
        return f"{error}\n"
    return "done\n"


def fork(report: Callable[[], str]) -> int:
    """Return the process id of a child that writes its report and ends."""
    if child := os.fork():
        return child
    code = 1
    try:
        sys.stdout.write(report())
        sys.stdout.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - printed, as the process ends without
        traceback.print_exc()
    finally:
        os._exit(code)


def used_and_forked() -> str:
    """Use a lock, then report nothing but what a patched child does."""
    use_a_lock()
    child = fork(lambda: patched("child"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return ""


def main() -> None:
    set_up(sys.argv[-1], *APPS)
    import_all()
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", "redlock_django", verbosity=0)
    connections.close_all()

    if "--used" in sys.argv:
        use_a_lock()
        sys.stdout.write(patched("order"))
        return
    child = fork(used_and_forked)
    report = patched("order")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sys.stdout.write(report)


if __name__ == "__main__":
    main()
