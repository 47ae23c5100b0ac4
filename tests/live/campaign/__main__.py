"""`python -m tests.live.campaign`: every kind of fault of a store, one after the other.

Three worker processes with threads and event loops take locks from one store: five Redis masters in
network namespaces of their own, each with a clock of its own; a database with a clock of its own;
or three ZooKeeper servers. Every kind of fault lasts two seconds. It prints how many uncontended
locks were granted meanwhile, and the broken promises: two holders at once, fences that do not grow,
exceptions that are not documented, locks that are left, workers that are not granted locks again.
The exit status is 1 if there is one. It needs gcc and the servers; for Redis masters also root,
iproute2 and iptables, and sends traffic to its own namespaces only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from tests.live.campaign.report import availability, table
from tests.live.campaign.run import print_line, run
from tests.live.campaign.stores import STORES
from tests.live.campaign.worker import PERMITS
from tests.live.network import namespace_obstacle


def main() -> int:
    """Read the command line, run the campaign, and print its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.live.campaign", description=__doc__)
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of faults whose names contain this")
    parser.add_argument("--history", type=Path, help="write every event here, for history.py")
    options = parser.parse_args()
    if options.store == "redis" and (obstacle := namespace_obstacle()):
        parser.error(obstacle)
    print_line(f"{options.store}, seed {options.seed}, {options.minutes:g} minutes")
    campaign = run(options.store, 60 * options.minutes, options.seed, options.only)
    events = campaign.events
    if options.history:
        options.history.write_text("".join(f"{json.dumps(e._asdict())}\n" for e in events))
    rows = availability(campaign.windows, events, [kind.name for kind in campaign.kinds])
    majority = {kind.name for kind in campaign.kinds if kind.majority}
    marked = [r._replace(kind=r.kind + " †" * (r.kind in majority)) for r in rows]
    print_line(f"\n{table(marked)}\n\n† a majority is affected: its locks may be refused\n")
    grants = sum(event.what == "granted" or event.entry == "granted" for event in events)
    permits = sum(e.what == "granted" and e.resource.startswith(PERMITS) for e in events)
    print_line(
        f"{grants:,} grants ({permits:,} permits), {len(campaign.windows):,} faults and healthy "
        f"times of {len(campaign.kinds)} kinds of faults"
    )
    for kind, why in campaign.impossible.items():
        print_line(f"not possible here: {kind}: {why}")
    for line in campaign.broken:
        print_line(f"BROKEN: {line}")
    print_line("broken" if campaign.broken else "all promises kept")
    return 1 if campaign.broken else 0


if __name__ == "__main__":
    sys.exit(main())
