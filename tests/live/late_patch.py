"""A process that gevent patches late: after it has imported the whole package, or used it.

    python -m tests.live.late_patch [--fork] [--used] SETTINGS

SETTINGS is JSON with REDLOCK and DATABASES. With `--used` the process uses a lock before the patch;
with `--fork` a child of that process is patched, as a worker of `gunicorn --preload -k gevent` is.
Then many greenlets use locks. Writes "done" to stdout, or the error.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from typing import Any

import django
from django.conf import settings

import redlock_django

APPS = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes"]
APPS += ["redlock_django"]
GREENLETS = 12
WITHOUT = ("redlock_django.contrib", "redlock_django.testing.plugin")  # they need extras


def import_all() -> None:
    """Import every module of the package, as a site that uses all of it does."""
    for module in pkgutil.walk_packages(redlock_django.__path__, "redlock_django."):
        if not module.name.startswith(WITHOUT):
            importlib.import_module(module.name)


def exclude_each_other() -> None:
    """Use one lock in many greenlets, hold another one for longer than its TTL, and lose a third.

    The greenlets sleep inside the lock, so a client that blocked its thread would block the holder.
    """
    import threading
    import time

    from redlock_django import lock, locks
    from redlock_django.signals import lock_lost

    inside: list[int] = []
    lost: list[str] = []

    def work(number: int) -> None:
        for _ in range(3):
            with lock("order:1", wait=60):
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
    with lock("order:2", wait=60) as held, lock("order:3", renew=False):
        time.sleep(ttl * 1.25)
        held.ensure_held()  # a greenlet has renewed it
    assert lost == ["order:3"], lost
    locks.close()


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[-1])
    if "mysql" in given["DATABASES"]["default"]["ENGINE"]:
        importlib.import_module("pymysql").install_as_MySQLdb()
    settings.configure(INSTALLED_APPS=APPS, **given)
    django.setup()
    import_all()
    from django.core.management import call_command
    from django.db import connections

    from redlock_django import lock

    if "DATABASES" in given:
        call_command("migrate", "redlock_django", verbosity=0)
        connections.close_all()

    if "--used" in sys.argv:
        with lock("order:1", wait=60):
            pass
    if "--fork" in sys.argv and (child := os.fork()):
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    importlib.import_module("gevent.monkey").patch_all()
    try:
        exclude_each_other()
    except redlock_django.InvalidRedlock as error:
        sys.stdout.write(f"{error}\n")
    else:
        sys.stdout.write("done\n")
    sys.stdout.flush()
    if "--fork" in sys.argv:
        os._exit(0)


if __name__ == "__main__":
    main()
