"""A worker process of the soak: acquire a lock, read the register, pause, write.

Now and then it takes a slot of a name of which several may hold one. It reports its steps on
stdout, as `history.Event`s without the worker's name: requests before they are sent, replies after
they have arrived. It runs until SIGTERM.
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

from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.wire.clock import clock
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from redlock_django import Lock
    from tests.live.soak.register import Register

TTL = 1.0
PERMITS = 2  # slots of a name that all workers share


@dataclass
class Task:
    """The task of a worker; `gated`: it runs once, and each step waits for a line on stdin."""

    masters: list[str]
    database: dict[str, Any]
    registers: list[str]
    seed: str
    fenced: bool = True
    gated: bool = False
    forgetful: bool = False

    def dumps(self) -> str:
        """Return the task as JSON, for the command line of the worker."""
        return json.dumps(asdict(self))


def lock_settings(masters: list[str], forgetful: bool = False) -> dict[str, Any]:
    """Return REDLOCK for the soak: short TTLs, generous timeouts, otherwise the defaults.

    `forgetful` removes one rule: restarted masters are trusted at once.
    """
    times = {"TTL": TTL, "MAX_TTL": TTL, "RESTART_DELAY": 0 if forgetful else "auto"}
    return {"default": {"MASTERS": masters, **times, **generous_timeouts(TTL)}}


class Worker:
    """A loop that acquires one lock after the other."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rng = random.Random(task.seed)
        self._ending = threading.Event()
        self._written = 0
        signal.signal(signal.SIGTERM, lambda *_: self._ending.set())

    def run(self) -> None:
        """Run until SIGTERM; a gated worker ends after it has held the lock once."""
        if self._task.gated:
            sys.stdin.readline()
        while not self._ending.is_set():
            if not self._task.gated and self._rng.random() < 0.25:
                self.take_permit("permits")
                continue
            granted = self.increment(self._rng.choice(self._task.registers))
            if granted and self._task.gated:
                return

    def take_permit(self, name: str) -> None:
        """Hold a slot of a name for a moment, or for longer than the TTL."""
        from redlock_django import NotAcquired, lock

        held = lock(name, wait=self._rng.choice((0, 5 * TTL)), renew=True, limit=PERMITS)
        self._report("acquire", name)
        try:
            held.acquire()
        except NotAcquired:
            self._report("refused", name)
            self._ending.wait(self._rng.uniform(0, 0.1))
            return
        self._report("granted", slot_resource(name, held.slot), held)
        self._ending.wait(self._rng.uniform(0, 0.02) if self._rng.random() < 0.9 else 1.5 * TTL)
        self._report_renewed(slot_resource(name, held.slot), held)
        self._report("release", name)
        held.release()
        self._report("released", name)

    def increment(self, name: str) -> bool:
        """Add 1 to a register and append to it, under its lock; return whether it was granted."""
        from redlock_django import LockLost, NotAcquired, lock

        renewed = self._task.gated or self._rng.random() < 0.5
        wait = 60 if self._task.gated else self._rng.choice((0, 5 * TTL))
        held = lock(name, wait=wait, renew=renewed)
        self._report("acquire", name)
        try:
            held.acquire()
        except NotAcquired:
            self._report("refused", name)
            self._ending.wait(self._rng.uniform(0, 0.1))
            return False
        self._report("granted", name, held)
        try:
            self._write(name, held, renewed)
        except LockLost:
            self._report("lost", name)
        if renewed:
            self._report_renewed(name, held)
        self._report("release", name)
        held.release()
        self._report("released", name)
        return True

    def _write(self, name: str, held: Lock, renewed: bool) -> None:
        from redlock_django import LockLost
        from tests.live.soak.register import Register

        rows = Register.objects.filter(name=name)
        fenced = rows.fenced(held)
        try:
            register = fenced.claim().get() if self._task.fenced else rows.get()
        except LockLost:
            self._report("rejected", name)
            return
        self._pause(name, held, renewed)
        values = self._appended(register)
        self._report("write", name, entry=values["entry"])
        try:
            if self._task.fenced:
                fenced.update(**values)
            else:
                # The fence is only recorded for the log of the register, not compared.
                rows.update(**values, fence=held.fence)
        except LockLost:
            self._report("rejected", name, entry=values["entry"])
        else:
            self._report("wrote", name, entry=values["entry"])

    def _appended(self, register: Register) -> dict[str, Any]:
        self._written += 1
        entry = f"{self._task.seed}:{self._written}"
        return {"value": register.value + 1, "entry": entry, "after": register.entry}

    def _pause(self, name: str, held: Lock, renewed: bool) -> None:
        if self._task.gated:
            self._report("read", name)
            sys.stdin.readline()
            return
        if self._rng.random() > 0.05:
            self._ending.wait(self._rng.uniform(0, 0.02))
            return
        # Longer than the TTL, so it needs an extension: by the renewal service or by the worker.
        self._ending.wait(0.6 * TTL)
        if not renewed:
            self._report("renew", name)
            held.extend()
            self._report_renewed(name, held)
        self._ending.wait(0.6 * TTL)

    def _report_renewed(self, name: str, held: Lock) -> None:
        if held.locked:
            self._report("renewed", name, held)

    def _report(self, what: str, name: str, held: Lock | None = None, entry: str = "") -> None:
        fence, until = 0, 0.0
        if held is not None:
            assert held._held_lease is not None
            # Not `remaining()`: the process may be stopped between that call and the report.
            fence, until = held.fence, held._held_lease.lease.until
        # One write, so that a killed worker has reported either the whole line or nothing.
        line = json.dumps([what, clock(), name, fence, until, entry]) + "\n"
        os.write(sys.stdout.fileno(), line.encode())


def main(task: Task) -> None:
    """Set Django up and run the worker."""
    settings.configure(
        DATABASES={"default": task.database},
        REDLOCK=lock_settings(task.masters, task.forgetful),
        INSTALLED_APPS=["redlock_django"],
    )
    django.setup()
    Worker(task).run()


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
