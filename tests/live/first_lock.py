"""A process that uses one lock in an event loop, and prints what it imported meanwhile.

    python -m tests.live.first_lock SETTINGS

SETTINGS is JSON with REDLOCK and DATABASES. Prints two lines of JSON: the modules that the first
lock imported in the loop, and the libraries of stores that the process has imported at all. With
`--migrate` it creates the tables instead.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading

from tests.programs import set_up


async def first_lock() -> list[str]:
    """Return the modules that the first lock of the process imports in this thread, the loop's."""
    from redlock_django import lock

    imported: list[str] = []
    loop = threading.get_ident()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "import" and threading.get_ident() == loop:
            imported.append(str(arguments[0]))

    sys.addaudithook(note)
    async with lock("order:1", wait=60):
        pass
    return imported[:]


def main() -> None:
    set_up(sys.argv[-1])
    from django.core.management import call_command
    from django.db import connections

    if "--migrate" in sys.argv:
        call_command("migrate", verbosity=0, skip_checks=True)
        connections.close_all()
        return
    importlib.import_module("redlock_django.locking.lock")  # as the views of a site do
    print(json.dumps(asyncio.run(first_lock())))  # noqa: T201
    print(json.dumps(sorted({"redis", "kazoo"} & set(sys.modules))))  # noqa: T201


if __name__ == "__main__":
    main()
