"""A worker of the soak, a process of its own: take a lock, read the register, think, write.

It says on stdout what it does and is told, as `history.Event`s without the worker's name: questions
before they are asked, answers after they are there. It works until SIGTERM.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import django
from django.conf import settings

from redlock_django.wire.clock import clock
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from redlock_django import Lock
    from tests.live.soak.register import Register

TTL = 1.0


@dataclass
class Task:
    """What a worker is to do; `gated`: once, each step after a line on stdin."""

    masters: list[str]
    database: dict[str, Any]
    registers: list[str]
    seed: str
    fenced: bool = True
    gated: bool = False
    forgetful: bool = False

    def dumps(self) -> str:
        """For the worker's command line."""
        return json.dumps(asdict(self))


def lock_settings(masters: list[str], forgetful: bool = False) -> dict[str, Any]:
    """Give REDLOCK for the soak: short locks, everything else as it comes.

    `forgetful` takes one rule out: restarted masters are trusted at once.
    """
    times = {"TTL": TTL, "MAX_TTL": TTL, "RESTART_DELAY": 0 if forgetful else "auto"}
    return {"default": {"MASTERS": masters, **times, **generous_timeouts(TTL)}}


class Worker:
    """One thread that takes one lock after the other."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._chance = random.Random(task.seed)
        self._ending = threading.Event()
        self._written = 0
        signal.signal(signal.SIGTERM, lambda *_: self._ending.set())

    def run(self) -> None:
        """Work until told to end; one that is gated is done when it has held the lock once."""
        if self._task.gated:
            sys.stdin.readline()
        while not self._ending.is_set():
            granted = self.increment(self._chance.choice(self._task.registers))
            if granted and self._task.gated:
                return

    def increment(self, name: str) -> bool:
        """Add 1 to a register and append to it, under its lock; whether it was granted."""
        from redlock_django import LockLost, NotAcquired, lock

        kept = self._task.gated or self._chance.random() < 0.5
        wait = 60 if self._task.gated else self._chance.choice((0, 5 * TTL))
        held = lock(name, wait=wait, renew=kept)
        self._say("acquire", name)
        try:
            held.acquire()
        except NotAcquired:
            self._say("refused", name)
            self._ending.wait(self._chance.uniform(0, 0.1))
            return False
        self._say("granted", name, held)
        try:
            self._write(name, held, kept)
        except LockLost:
            self._say("lost", name)
        if kept:
            self._say_renewed(name, held)
        self._say("release", name)
        held.release()
        self._say("released", name)
        return True

    def _write(self, name: str, held: Lock, kept: bool) -> None:
        from redlock_django import LockLost
        from tests.live.soak.register import Register

        rows = Register.objects.filter(name=name)
        fenced = rows.fenced(held)
        try:
            register = fenced.claim().get() if self._task.fenced else rows.get()
        except LockLost:
            self._say("rejected", name)
            return
        self._think(name, held, kept)
        values = self._appended(register)
        self._say("write", name, entry=values["entry"])
        try:
            if self._task.fenced:
                fenced.update(**values)
            else:
                # As the fence is not asked for, it is only told: for the register's log.
                rows.update(**values, fence=held.fence)
        except LockLost:
            self._say("rejected", name, entry=values["entry"])
        else:
            self._say("wrote", name, entry=values["entry"])

    def _appended(self, register: Register) -> dict[str, Any]:
        self._written += 1
        entry = f"{self._task.seed}:{self._written}"
        return {"value": register.value + 1, "entry": entry, "after": register.entry}

    def _think(self, name: str, held: Lock, kept: bool) -> None:
        if self._task.gated:
            self._say("read", name)
            sys.stdin.readline()
            return
        if self._chance.random() > 0.05:
            self._ending.wait(self._chance.uniform(0, 0.02))
            return
        # Longer than the TTL, so that it takes a renewal: the renewal service's or our own.
        self._ending.wait(0.6 * TTL)
        if not kept:
            self._say("renew", name)
            held.extend()
            self._say_renewed(name, held)
        self._ending.wait(0.6 * TTL)

    def _say_renewed(self, name: str, held: Lock) -> None:
        if held.locked:
            self._say("renewed", name, held)

    def _say(self, what: str, name: str, held: Lock | None = None, entry: str = "") -> None:
        fence, until = 0, 0.0
        if held is not None:
            assert held._held_lease is not None
            # `remaining()` would be late by as long as the process is stopped behind it.
            fence, until = held.fence, held._held_lease.lease.until
        # In one piece, so that a worker that is killed has said it or has not.
        line = json.dumps([what, clock(), name, fence, until, entry]) + "\n"
        os.write(sys.stdout.fileno(), line.encode())


def main(task: Task) -> None:
    """Set Django up and work."""
    settings.configure(
        DATABASES={"default": task.database},
        REDLOCK=lock_settings(task.masters, task.forgetful),
        INSTALLED_APPS=["redlock_django"],
    )
    django.setup()
    Worker(task).run()


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
