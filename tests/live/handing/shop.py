"""A Celery app whose task takes a lock that was handed on; run as a program, it is the giver.

Messages become files of HANDING_DIRECTORY, and what happens becomes lines of its file `notes`. The
worker is killed in the middle of the first delivery of a task.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import django
from celery import Celery
from django.conf import settings

DIRECTORY = Path(os.environ["HANDING_DIRECTORY"])

settings.configure(
    SECRET_KEY="insecure: for a test only",
    INSTALLED_APPS=["redlock_django"],
    LOGGING_CONFIG=None,
    REDLOCK=json.loads(os.environ["HANDING_REDLOCK"]),
)
django.setup()

from redlock_django import TicketUsed, lock, resume_lock  # noqa: E402

app: Any = Celery("shop", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(DIRECTORY / "messages"),
        "data_folder_out": str(DIRECTORY / "messages"),
        "control_folder": str(DIRECTORY / "control"),
    },
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


def note(*words: object) -> None:
    """Add a line to the notes."""
    with (DIRECTORY / "notes").open("a") as notes:
        print(*words, time.monotonic(), file=notes)


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="ship")  # type: ignore[untyped-decorator]
def ship(ticket: str) -> None:
    """Ship the order of a ticket; a second delivery waits for the lock that the first one left."""
    try:
        with resume_lock(ticket, ttl=3) as held:
            note("took", held.resources[0], held.fence)
            die()
    except TicketUsed:
        note("used")
        with lock("order:1", wait=60) as held:
            note("after", held.resources[0], held.fence)


if __name__ == "__main__":
    with lock("order:1") as given:
        note("gave", given.resources[0], given.fence)
        ship.delay(given.transfer(ttl=60))
        if sys.argv[1:] == ["die"]:
            die()
