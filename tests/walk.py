"""The way of a lock through the package: which files a warm call enters, and in which order.

`uv run python -m tests.walk` prints a table of four trips on three real masters, and the files of
each in order. The trips are those of a quiet process: of many repetitions, the shortest. On a busy
machine, most of them may meet a master that answers late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any
from uuid import uuid4

import redlock_django
from redlock_django.testing import local_masters

PACKAGE = f"{Path(redlock_django.__file__).parent}/"
WARM, REPEATED = 20, 31
"""How many trips come before those that are counted, and how many are counted."""


@dataclass(frozen=True)
class Trip:
    """The files of the package that a trip runs in, one after the other, and its calls.

    A call and a return are both moves. Generators that continue count as calls, as in a profile.
    """

    steps: tuple[str, ...]
    calls: int

    @property
    def files(self) -> list[str]:
        """Return the files in the order in which they are entered for the first time."""
        return list(dict.fromkeys(self.steps))

    @property
    def moves(self) -> int:
        """Return how often the trip goes on in another file."""
        return _changes(self.steps)

    @property
    def folder_moves(self) -> int:
        """Return how often the trip goes on in another folder."""
        return _changes([_folder(file) for file in self.steps])


def main() -> None:
    """Print the table, and the files of each trip by folder."""
    found = trips()
    print("\n".join(table(found)))
    for name, trip in found.items():
        print(f"\n{name}:")
        print("\n".join(f"  {line}" for line in folders(trip)))


def trips() -> dict[str, Trip]:
    """Return each trip by its name, made on three masters that run while it is made.

    Configure Django, so this works once in a process.
    """
    with local_masters(3) as masters:
        _configure([f"redis://127.0.0.1:{master.port}" for master in masters])
        return {name: shortest(trip) for name, trip in _made().items()}


def shortest(trip: Callable[[], Callable[[], Any]]) -> Trip:
    """Return the shortest way of a trip; `trip()` prepares one and returns what runs it."""
    for _ in range(WARM):
        trip()()
    ways = [walked(trip()) for _ in range(REPEATED)]
    return min(ways, key=lambda way: (len(way.files), way.calls, way.moves))


def walked(run: Callable[[], Any]) -> Trip:
    """Return the way of one call of `run`, in its own thread only."""
    steps: list[str] = []
    stack: list[str] = []
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE) or event not in {"call", "return"}:
            return
        if event == "call":
            calls += 1
            stack.append(path.removeprefix(PACKAGE))
        else:
            stack.pop()
        if stack:
            steps.append(stack[-1])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return Trip(tuple(steps), calls)


def table(found: dict[str, Trip]) -> Iterator[str]:
    """Yield the lines of a table of all trips."""
    yield "| Trip | Files | Calls | Moves between files | Moves between folders |"
    yield "|---|---|---|---|---|"
    for name, trip in found.items():
        counts = len(trip.files), trip.calls, trip.moves, trip.folder_moves
        yield f"| {name} | {' | '.join(map(str, counts))} |"


def folders(trip: Trip) -> Iterator[str]:
    """Yield a line for each run of files of one folder, in the order of their first use."""
    line = ""
    last = None
    for file in trip.files:
        name = PurePosixPath(file).name
        if (folder := _folder(file)) == last:
            line += f", {name}"
            continue
        if line:
            yield line
        last, line = folder, file
    yield line


def _changes(steps: tuple[str, ...] | list[str]) -> int:
    return sum(one != other for one, other in pairwise(steps))


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)


def _configure(masters: list[str]) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        SECRET_KEY="insecure: for a walk only",
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "redlock_django",
        ],
        MIDDLEWARE=["redlock_django.middleware.LockMiddleware"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": ":memory:",
                "ATOMIC_REQUESTS": True,
            }
        },
        REDLOCK={"default": {"MASTERS": masters, "RESTART_DELAY": 0}},
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)


def _made() -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return what prepares each trip. Django is configured now."""
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, HttpResponse
    from django.test import RequestFactory
    from django.urls import path

    from redlock_django import idempotent, lock, lock_resource

    @lock_resource("order:<int:pk>")
    def show(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(b"shown")

    @idempotent(anonymous_scope=lambda request, pk: "walker")
    @lock_resource("order:<int:pk>")
    def pay(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(b"paid", status=201)

    globals()["urlpatterns"] = [path("orders/<int:pk>/", show), path("orders/<int:pk>/pay/", pay)]
    site, requests = WSGIHandler(), RequestFactory()

    def pair() -> None:
        with lock("order:7"):
            pass

    def answered(request: HttpRequest, status: int) -> Callable[[], None]:
        def respond() -> None:
            response = site.get_response(request)
            response.close()
            if response.status_code != status:
                answer = f"{response.status_code} instead of {status}"
                raise RuntimeError(f"{request.path} is answered {answer}")

        return respond

    def first(key: str) -> Callable[[], None]:
        headers = {"Idempotency-Key": key}
        return answered(requests.post("/orders/7/pay/", {"amount": 1}, headers=headers), 201)

    def replay() -> Callable[[], None]:
        key = str(uuid4())
        first(key)()
        return first(key)

    return {
        "`with lock()`: acquire and release": lambda: pair,
        "GET with `@lock_resource`, under ATOMIC_REQUESTS and LockMiddleware": lambda: answered(
            requests.get("/orders/7/"), 200
        ),
        "POST with `@lock_resource` and `@idempotent`": lambda: first(str(uuid4())),
        "its replay": replay,
    }


if __name__ == "__main__":
    main()
