"""Locks in three ZooKeeper servers under random faults: `python -m tests.live.zookeeper_faults`.

Five processes take locks, and slots of a name that two may hold. Processes are killed, or stopped
for longer than their session; servers are killed and stopped, one or two at a time. Every hold is
written down: when it began, the last moment at which `ensure_held()` was called and raised nothing,
and the fence. No two holds of a resource or slot may overlap, and fences must grow. The exit status
is 1 if that is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.wire.clock import clock
from tests.zookeeper import ZooKeeperServer, local_zookeeper

PROCESSES = 5
SESSION = 2.0  # seconds
SLOTS = 2  # of the name "c"
FAULTS = ("stop process", "stop process", "kill process", "kill server", "stop one", "stop two")

Hold = tuple[float, float, int]


def main() -> None:
    """Run the faults, and print what was held and what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.zookeeper_faults")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=2, metavar=("HOSTS", "FOLDER"), help="used internally")
    given = parser.parse_args()
    if given.work:
        work(given.work[0].split(","), Path(given.work[1]))
        return
    with tempfile.TemporaryDirectory() as folder, local_zookeeper(3) as servers:
        faults = strike(servers, folder, given.seconds, random.Random(given.seed))
        sys.stdout.write(f"faults: {dict(faults)}\n")
        sys.exit(report(Path(folder)))


def strike(
    servers: list[ZooKeeperServer], folder: str, seconds: float, choose: random.Random
) -> Counter[str]:
    """Start the processes, and strike them and the servers for so many seconds."""
    hosts = ",".join(server.host for server in servers)
    command = [sys.executable, "-m", "tests.live.zookeeper_faults", "--work", hosts, folder]
    processes = [_spawn(command) for _ in range(PROCESSES)]
    faults: Counter[str] = Counter()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(choose.uniform(0.5, 2))
            fault, index = choose.choice(FAULTS), choose.randrange(PROCESSES)
            faults[fault] += 1
            if fault == "stop process":
                processes[index].send_signal(signal.SIGSTOP)
                time.sleep(choose.choice([0.25, 0.75, 2]) * SESSION)
                processes[index].send_signal(signal.SIGCONT)
            elif fault == "kill process":
                processes[index].kill()
                processes[index].wait()
                processes[index] = _spawn(command)
            elif fault == "kill server":
                (server,) = choose.sample(servers, 1)
                server.kill()
                time.sleep(choose.uniform(0, 1.5 * SESSION))
                server.start()
                server.wait()
            else:
                struck = choose.sample(servers, 2 if fault == "stop two" else 1)
                for server in struck:
                    server.pause()
                time.sleep(choose.choice([0.25, 1, 2]) * SESSION)
                for server in struck:
                    server.resume()
            assert all(process.poll() is None for process in processes), "a process ended"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return faults


def work(hosts: list[str], folder: Path) -> None:
    """Take locks for ever, and write every hold down."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["redlock_django"],
        LOGGING={"version": 1, "loggers": {"redlock_django": {"level": "CRITICAL"}}},
        REDLOCK={
            "default": {
                "BACKEND": "redlock_django.backends.zookeeper.ZooKeeperBackend",
                "HOSTS": hosts,
                "SESSION_TIMEOUT": SESSION,
                "TTL": 5,
            }
        },
    )
    django.setup()
    from redlock_django import RedlockError, lock
    from redlock_django.locking.services import locks

    with suppress(RedlockError):  # the servers are new: the first process declares that
        locks["default"].backend.declare_new()
    with (folder / f"{os.getpid()}-{time.time_ns()}").open("w", buffering=1) as output:
        while True:
            names = random.choice([("a",), ("b",), ("a", "b"), ("c",), ("c",)])
            limit = SLOTS if names == ("c",) else 1
            try:
                with lock(*names, wait=random.choice([0, 3]), limit=limit) as held:
                    # If the process was stopped just before, the lock may be lost already.
                    began = surely = clock()
                    held.ensure_held()
                    try:
                        for _ in range(random.randrange(1, 20)):
                            asked = clock()
                            held.ensure_held()
                            surely = asked
                            time.sleep(random.uniform(0, 0.02))
                    finally:
                        fences = {
                            slot_resource(name, held.slot): held.fences[name] for name in names
                        }
                        print(json.dumps([began, surely, fences]), file=output)
            except RedlockError as error:
                print(json.dumps(type(error).__name__), file=output)
                time.sleep(0.01)


def report(folder: Path) -> int:
    """Print the numbers of holds and errors; return 1 if holds overlap or a fence does not grow."""
    holds: dict[str, list[Hold]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for line in [line for file in folder.iterdir() for line in file.read_text().split("\n")[:-1]]:
        found = json.loads(line)
        if isinstance(found, str):
            errors[found] += 1
        else:
            for name, fence in found[2].items():
                holds[name].append((found[0], found[1], fence))
    sys.stdout.write(f"errors: {dict(errors)}\n")
    bad = 0
    for name, spans in sorted(holds.items()):
        spans.sort()
        pairs = list(pairwise(spans))
        overlaps = [pair for pair in pairs if pair[1][0] < pair[0][1]]
        fences = [pair for pair in pairs if pair[1][2] <= pair[0][2]]
        sys.stdout.write(
            f"{name}: {len(spans)} holds, {len(overlaps)} overlaps, {len(fences)} bad fences\n"
        )
        for before, after in (*overlaps, *fences):
            sys.stdout.write(f"  {before} before {after}\n")
        bad += len(overlaps) + len(fences)
    return 1 if bad or not holds else 0


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


if __name__ == "__main__":
    main()
