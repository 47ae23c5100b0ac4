"""`python -m tests.live.soak`: real masters, workers and PostgreSQL under faults, for long.

Workers in processes of their own increment and append to registers, under locks whose masters
are killed, stopped and restarted, while they are themselves stopped for twice the TTL and killed.
With fencing no update may be lost; with `--unfenced` some must be, or the soak would not tell. The
history of all locks is checked either way. Status 1 if a promise was broken, as it must be with
`--forgetful --every 0.1`: masters restart empty and are trusted at once.
"""

from __future__ import annotations

import argparse
import random
import sys

import django
from django.conf import settings

from redlock_django.testing.masters import local_masters
from tests.live.soak.soaking import say, soak
from tests.postgres import local_postgres


def main() -> int:
    """Read the command line, start the servers, soak, and say what it has shown."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument("--forgetful", action="store_true", help="must break the lock")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fenced", action="store_true", default=True, help="the default")
    how.add_argument("--unfenced", action="store_false", dest="fenced")
    asked = parser.parse_args()
    settings.configure(INSTALLED_APPS=["redlock_django"])
    django.setup()
    say(f"seed {asked.seed}, {'with' if asked.fenced else 'without'} fencing")
    with local_postgres() as database, local_masters(5) as masters:
        report, wrong = soak(
            masters,
            database,
            seconds=asked.seconds,
            fenced=asked.fenced,
            seed=asked.seed,
            workers=asked.workers,
            every=asked.every,
            forgetful=asked.forgetful,
        )
    for what, number in report.rows().items():
        say(f"{what:60} {number:>12}")
    for line in wrong:
        say(f"BROKEN: {line}")
    say("broken" if wrong else "all promises kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
