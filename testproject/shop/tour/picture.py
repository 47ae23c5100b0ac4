"""A picture of the masters: which of them answer, which hold a lock, and its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from redis.exceptions import RedisError

from redlock_django.locking.services import locks

if TYPE_CHECKING:
    from redlock_django.backends.inspection.results import ServerHealth
    from redlock_django.testing import LocalMaster


class Master(TypedDict):
    """One master; `state` is "locked", "free", "waiting" or "silent", `x` its place."""

    name: str
    port: int
    state: str
    word: str
    x: int


class Picture(TypedDict):
    """All masters at one moment; a plain mapping, so that a session can store it."""

    caption: str
    resource: str
    fence: int
    locked: int
    masters: list[Master]


WORDS = {"locked": "locked", "free": "free", "waiting": "no vote", "silent": "no answer"}
WIDTH = 72  # of one master


def picture(masters: list[LocalMaster], resource: str = "", caption: str = "") -> Picture:
    """Ask all masters for their health, and for the lock and the fence of a resource."""
    with locks["default"].backend.inspect() as inspection:
        reports = inspection.health()
    drawn: list[Master] = []
    highest = 0
    for number, (master, report) in enumerate(zip(masters, reports, strict=True)):
        state, fence = _state(master, report, resource)
        highest = max(highest, fence)
        name = f"master {number + 1}"
        word = WORDS[state] if resource or state != "free" else "answers"
        place = number * WIDTH
        drawn.append(Master(name=name, port=master.port, state=state, word=word, x=place))
    return Picture(
        caption=caption,
        resource=resource,
        fence=highest,
        locked=sum(master["state"] == "locked" for master in drawn),
        masters=drawn,
    )


def _state(master: LocalMaster, report: ServerHealth, resource: str) -> tuple[str, int]:
    """Return the state of a master, and the fence of the lock that it holds, otherwise 0."""
    if master.paused or not master.alive:
        return "silent", 0
    try:
        with master.client() as client:  # docs/contributing/on-the-wire.md describes the keys
            lock, fence = client.mget(f"redlock:lock:{resource}", f"redlock:fence:{resource}")
    except RedisError:  # it has been stopped since
        return "silent", 0
    if lock is not None:
        return "locked", int(fence or 0)
    return ("free" if report.counted or report.health is None else "waiting"), 0
