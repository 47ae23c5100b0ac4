"""A Celery app with one periodic task, whose beat notes that it runs; messages become files."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from celery import Celery

INTERVAL = 0.5
DIRECTORY = Path(os.environ["BEAT_DIRECTORY"])

app = Celery("beats", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(DIRECTORY / "messages"),
        "data_folder_out": str(DIRECTORY / "messages"),
        "control_folder": str(DIRECTORY / "control"),
    },
    beat_schedule={"tick": {"task": "tick", "schedule": INTERVAL}},
    beat_max_loop_interval=0.2,
)

_notes = (DIRECTORY / "notes").open("a", buffering=1)
_alone = (DIRECTORY / "notes.lock").open("a")
try:
    fcntl.flock(_alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("two", os.getpid(), time.monotonic(), "?", file=_notes)
print("start", os.getpid(), time.monotonic(), os.environ["SUPERVISOR"], file=_notes)
