"""A program that `manage.py lead` runs in tests: it notes that it runs, and whether another does.

Arguments: the file of the notes, then words: "stubborn" ignores SIGTERM. It holds a lock of the
system on a second file, which the system frees when the process is dead, and not earlier.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time


def main(notes: str, *words: str) -> None:
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(notes, "a", buffering=1) as log, open(f"{notes}.lock", "a") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("two", os.getpid(), time.monotonic(), "?", file=log)
        supervisor = os.environ.get("SUPERVISOR", "?")
        print("start", os.getpid(), time.monotonic(), supervisor, file=log)
        while True:
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
