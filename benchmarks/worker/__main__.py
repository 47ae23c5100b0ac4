"""`python -m benchmarks.worker FD MODULE`: fork workers of a contender, whose library is imported.

To import a library takes longer than most jobs, and every job has a process of its own. Over the
socket FD come messages of JSON: {"cpus": [0]}, with the standard streams of a new worker, is
answered by its process id, and {"end": 123} once that worker has ended.

A worker reads jobs and writes results, one line of JSON each. The first line is the contender:
{"home": "module:Class", "api": "sync", "masters": [["127.0.0.1", 20001], ...], "options": {...}}.
The response is {"ready": true}. Every later line is a job, {"job": "pairs.pairs", ...}: a coroutine
function of a file of `workloads/`, and its arguments. Its result is its figures, or
{"error": "..."}.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any

from benchmarks.worker.bench import Tasks, Threads, complete
from benchmarks.worker.witness import Intruder


class Conductor:
    """The conductor at the other end of standard input and output."""

    def __init__(self) -> None:
        # Output of a library must not mix with the results.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def hear(self) -> dict[str, Any] | None:
        """Return the next line, or None at the end."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def say(self, answer: dict[str, Any]) -> None:
        """Send a result."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


async def serve(
    conductor: Conductor,
    api: type[Threads | Tasks],
    make: Any,
    masters: list[Any],
    options: dict[str, Any],
) -> None:
    """Run jobs with a contender."""
    contender = make(masters, **options)
    if hasattr(contender, "connect"):
        await contender.connect()
    _freeze()
    conductor.say({"ready": True})
    while (asked := await api.aside(conductor.hear)) is not None:
        try:
            job = find(asked.pop("job"))
            with Intruder(masters, contender) as intruder:
                conductor.say(await job(api(contender, intruder), **asked))
        except Exception:  # noqa: BLE001 - reported by the conductor
            conductor.say({"error": traceback.format_exc()})


def find(job: str) -> Any:
    """Return the coroutine function of a job, which is written as file.function."""
    file, _, function = job.partition(".")
    return getattr(import_module(f"benchmarks.workloads.{file}"), function)


def _freeze() -> None:
    """Take what has been imported out of garbage collection, as many servers do before they fork.

    A full collection of these objects takes 30 to 110 ms, and would be the longest pair.
    """
    gc.collect()
    gc.freeze()


def work() -> None:
    """Serve until the conductor closes standard input."""
    conductor = Conductor()
    who = conductor.hear()
    if who is None:
        return
    module, _, name = who["home"].partition(":")
    try:
        make = getattr(import_module(module), name)
        start, api = (asyncio.run, Tasks) if who["api"] == "async" else (complete, Threads)
        start(serve(conductor, api, make, who["masters"], who["options"]))
    except Exception:  # noqa: BLE001 - reported by the conductor
        conductor.say({"error": traceback.format_exc()})


def fork(channel: socket.socket, streams: list[int], cpus: list[int]) -> int:
    """Fork a worker with these standard streams, on these processors, and return its process id."""
    if pid := os.fork():
        return pid
    try:
        channel.close()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.sched_setaffinity(0, cpus)
        work()
    except BaseException:  # noqa: BLE001 - a forked process must not go on as the process that forks
        traceback.print_exc()
    # Threads of some contenders would delay the exit until their timeouts.
    os._exit(0)


def main() -> None:
    """Fork workers until the conductor closes the socket."""
    import_module(sys.argv[2])
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            message, streams, _, _ = socket.recv_fds(channel, 4096, 3)
            if not message:
                return
            asked = json.loads(message)
            if (pid := asked.get("end")) is None:
                pid = fork(channel, streams, asked["cpus"])
            else:
                os.kill(pid, signal.SIGKILL)  # it is not waited for before, so it is that process
                os.waitpid(pid, 0)
            for stream in streams:
                os.close(stream)
            channel.send(b"%d" % pid)


main()
