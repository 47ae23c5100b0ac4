"""`python -m tests.live.soak`: a long run of real masters, workers and PostgreSQL under faults.

Worker processes increment registers and append to them, under locks whose masters are killed,
stopped and restarted. The workers themselves are killed, and stopped for twice the TTL. With
fencing no update may be lost; with `--unfenced` some must be lost, or the soak could not find any.
The history of all locks is checked in both cases. The exit status is 1 if a promise was broken. It
must be 1 with `--forgetful --every 0.1`: masters restart empty and are trusted at once.
"""

from __future__ import annotations

import argparse
import random
import sys

import django
from django.conf import settings

from redlock_django.testing.masters import local_masters
from tests.live.soak.run import print_line, soak
from tests.postgres import local_postgres


def main() -> int:
    """Read the command line, start the servers, run the soak, and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument(
        "--forgetful",
        action="store_true",
        help="trust restarted masters at once; must break the lock",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fenced", action="store_true", default=True, help="the default")
    how.add_argument("--unfenced", action="store_false", dest="fenced")
    options = parser.parse_args()
    settings.configure(INSTALLED_APPS=["redlock_django"])
    django.setup()
    print_line(f"seed {options.seed}, {'with' if options.fenced else 'without'} fencing")
    with local_postgres() as database, local_masters(5) as masters:
        report, wrong = soak(
            masters,
            database,
            seconds=options.seconds,
            fenced=options.fenced,
            seed=options.seed,
            workers=options.workers,
            every=options.every,
            forgetful=options.forgetful,
        )
    for what, number in report.rows().items():
        print_line(f"{what:60} {number:>12}")
    for line in wrong:
        print_line(f"BROKEN: {line}")
    print_line("broken" if wrong else "all promises kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
