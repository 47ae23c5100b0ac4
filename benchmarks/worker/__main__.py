"""`python -m benchmarks.worker`: jobs come in and results go out, one line of JSON each.

The first line says who we are: {"home": "module:Class", "colour": "sync", "masters":
[["127.0.0.1", 20001], ...], "options": {...}}. The answer is {"ready": true}. Every later line
is a job, {"job": "pairs", ...}; its answer is its figures, or {"error": "..."}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

from benchmarks.worker import jobs, jobs_async
from benchmarks.worker.witness import Intruder


class Conductor:
    """The other end of our standard input and output."""

    def __init__(self) -> None:
        # A library that prints must not print between the lines.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def hear(self) -> dict[str, Any] | None:
        """The next line; None when there is none."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def say(self, answer: dict[str, Any]) -> None:
        """Send an answer."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


def serve(conductor: Conductor, make: Any, masters: list[Any], options: dict[str, Any]) -> None:
    """Do jobs with a contender that blocks."""
    contender = make(masters, **options)
    conductor.say({"ready": True})
    while (asked := conductor.hear()) is not None:
        try:
            work = getattr(jobs, asked.pop("job"))
            with Intruder(masters, contender) as intruder:
                conductor.say(work(contender, intruder, **asked))
        except Exception:  # noqa: BLE001 - the conductor tells of it
            conductor.say({"error": traceback.format_exc()})


async def aserve(
    conductor: Conductor, make: Any, masters: list[Any], options: dict[str, Any]
) -> None:
    """Do jobs with a contender of coroutines."""
    contender = make(masters, **options)
    await contender.connect()
    conductor.say({"ready": True})
    loop = asyncio.get_running_loop()
    # Heard on a thread: what the contender does in the background goes on.
    while (asked := await loop.run_in_executor(None, conductor.hear)) is not None:
        try:
            work = getattr(jobs_async, asked.pop("job"))
            with Intruder(masters, contender) as intruder:
                conductor.say(await work(contender, intruder, **asked))
        except Exception:  # noqa: BLE001 - the conductor tells of it
            conductor.say({"error": traceback.format_exc()})


def main() -> None:
    """Serve until the conductor hangs up."""
    conductor = Conductor()
    who = conductor.hear()
    if who is None:
        return
    module, _, name = who["home"].partition(":")
    try:
        make = getattr(import_module(module), name)
        if who["colour"] == "async":
            asyncio.run(aserve(conductor, make, who["masters"], who["options"]))
        else:
            serve(conductor, make, who["masters"], who["options"])
    except Exception:  # noqa: BLE001 - the conductor tells of it
        conductor.say({"error": traceback.format_exc()})
    # Some contenders' threads would keep us for their timeouts.
    os._exit(0)


main()
