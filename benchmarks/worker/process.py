"""Worker processes: each has one contender, and runs the jobs that this process sends.

They are forked from a server that has imported Django and the project, which takes longer than
most jobs. A job is a coroutine function of `jobs/`, named as file.function; what it returns is
its result.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import traceback
from contextlib import ExitStack
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import site
from benchmarks.contenders import CONTENDERS, Contender, Place
from benchmarks.worker.bench import Bench, Tasks, Threads, complete
from benchmarks.worker.witness import Intruder

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["django.urls", "django.views.debug", "redlock_django.backends.redis",
     "redlock_django.locking.lock", "benchmarks.worker.process"]
)  # fmt: skip

PATIENCE = 30.0
"""Seconds beyond the length of a job after which a worker counts as failed."""


class WorkerFailed(Exception):
    """A worker returned an error or did not answer."""


class Worker:
    """A contender in a process of its own, which ends with `stack`."""

    def __init__(
        self,
        name: str,
        place: Place,
        stack: ExitStack,
        *,
        cpus: set[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._pipe, theirs = FORKS.Pipe()
        arguments = (theirs, name, place, cpus, options or {})
        self._process = FORKS.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        stack.callback(self.end)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def ask(self, job: str, **arguments: Any) -> None:
        """Begin a job. Raises WorkerFailed if the process has ended."""
        try:
            self._pipe.send((job, arguments))
        except OSError as error:
            raise WorkerFailed(f"{self._name} ended") from error

    def answer(self, within: float = 0.0) -> Any:
        """Return the result of the oldest job. Raises WorkerFailed if it failed or is late."""
        try:
            if not self._pipe.poll(within + PATIENCE):
                raise WorkerFailed(f"{self._name} never answered")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerFailed(f"{self._name} ended") from error
        if isinstance(answer, WorkerFailed):
            raise answer
        return answer

    def do(self, job: str, **arguments: Any) -> Any:
        """Do a job, and return its result."""
        self.ask(job, **arguments)
        return self.answer(arguments.get("seconds", 0.0))


def made(name: str, place: Place, **options: Any) -> Contender:
    """Return a contender on a place for which Django is configured."""
    module, _, kind = CONTENDERS[name].home.partition(":")
    found: Contender = getattr(import_module(f"benchmarks.contenders.{module}"), kind)(
        place, **options
    )
    return found


def serve(
    pipe: Connection, name: str, place: Place, cpus: set[int] | None, options: dict[str, Any]
) -> None:
    """Run jobs until the other end of the pipe is closed."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    logging.disable(logging.CRITICAL)  # while a server is down, all libraries log that
    site.configure(place)
    contender = made(name, place, **options)
    # A full collection of what has been imported takes 30 to 110 ms, and would be the longest pair.
    gc.collect()
    gc.freeze()
    with Intruder(place.masters, contender) as intruder:
        if contender.api == "async":
            asyncio.run(_serve(pipe, Tasks(contender, intruder)))
        else:
            complete(_serve(pipe, Threads(contender, intruder)))
    os._exit(0)  # threads of some contenders would delay the exit until their timeouts


async def _serve(pipe: Connection, bench: Bench) -> None:
    while True:
        try:
            job, arguments = await bench.aside(pipe.recv)
        except EOFError:
            return
        try:
            bench.intruder.forget()
            file, _, function = job.partition(".")
            work = getattr(import_module(f"benchmarks.jobs.{file}"), function)
            pipe.send(await work(bench, **arguments))
        except Exception:  # noqa: BLE001 - the other process reports it
            last = traceback.format_exc().strip().splitlines()
            pipe.send(WorkerFailed(f"{job}: {last[-1]} ({last[-3].strip()})"))
