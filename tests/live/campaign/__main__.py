"""`python -m tests.live.campaign`: some fifty kinds of faults, one after the other.

Five masters in network namespaces of their own, each with a clock of its own, and worker processes
with threads and event loops. Every kind of fault lasts two seconds. It prints how many uncontended
locks were granted meanwhile, and the broken promises: two holders at once, fences that do not grow,
exceptions that are not documented, keys that are left, workers that are not granted locks again.
The exit status is 1 if there is one. It needs root, iproute2, iptables and gcc, and sends traffic
to its own namespaces only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import django
from django.conf import settings

from tests.live.campaign.faults import KINDS
from tests.live.campaign.report import availability, table
from tests.live.campaign.run import print_line, run
from tests.live.network import namespace_obstacle


def main() -> int:
    """Read the command line, run the campaign, and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of faults whose names contain this")
    parser.add_argument("--history", type=Path, help="write every event here, for history.py")
    options = parser.parse_args()
    if obstacle := namespace_obstacle():
        parser.error(obstacle)
    settings.configure(INSTALLED_APPS=["redlock_django"])
    django.setup()
    kinds = [kind for kind in KINDS if options.only in kind.name]
    print_line(f"seed {options.seed}, {len(kinds)} kinds of faults, {options.minutes:g} minutes")
    campaign = run(60 * options.minutes, options.seed, kinds)
    events = campaign.events
    if options.history:
        options.history.write_text("".join(f"{json.dumps(e._asdict())}\n" for e in events))
    rows = availability(campaign.windows, events, [kind.name for kind in kinds])
    majority = {kind.name for kind in kinds if kind.majority}
    marked = [r._replace(kind=r.kind + " †" * (r.kind in majority)) for r in rows]
    print_line(f"\n{table(marked)}\n\n† a majority is affected: its locks may be refused\n")
    grants = sum(event.what == "granted" or event.entry == "granted" for event in events)
    print_line(f"{grants:,} grants, {len(campaign.windows):,} faults and healthy times")
    for kind, why in campaign.impossible.items():
        print_line(f"not possible here: {kind}: {why}")
    for line in campaign.broken:
        print_line(f"BROKEN: {line}")
    print_line("broken" if campaign.broken else "all promises kept")
    return 1 if campaign.broken else 0


if __name__ == "__main__":
    sys.exit(main())
