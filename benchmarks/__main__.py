"""`uv run python -m benchmarks`: measure the project and its peers in one run.

`python -m benchmarks NAME ...` runs one of `programs/` instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks import workloads
from benchmarks.harness import environments, machine, masters
from benchmarks.harness.contenders import CONTENDERS
from benchmarks.harness.plan import Plan
from benchmarks.harness.report import write
from benchmarks.harness.results import Results
from benchmarks.peers.ours import PATIENCE
from redlock_django.testing.processes import ProcessGroup

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("[a-z]*.py"))


def main() -> int:
    """Run the chosen workloads and write the report.

    Return 1 if a lock or a job failed or, with --strict, if a target was missed.
    """
    asked = arguments().parse_args()
    every = workloads.load()
    if asked.report:
        write(Results.load(asked.report), every.values(), asked.out)
        return 0
    if asked.quick:
        asked.rounds, asked.seconds, asked.repeats = 1, 0.1, 0
        # A quick run only shows that everything works, also on a busy machine.
        os.environ[PATIENCE] = "1.0"
    results = Results(machine.describe())
    results.about["rounds"], results.about["seconds for each job"] = asked.rounds, asked.seconds
    began = time.monotonic()
    try:
        measure(asked, results)
    except KeyboardInterrupt:
        results.troubles.append("the run was interrupted: what comes later was not measured")
    with contextlib.suppress(environments.Missing):
        results.about["peers"] = peer_versions({row.contender for row in results.rows})
    results.about["load at the end"] = machine.load()
    results.about[f"{machine.LOOP}, at the end"] = f"{machine.loop_ms():.3g} ms"
    results.about["took"] = f"{(time.monotonic() - began) / 60:.0f} min"
    write(results, every.values(), asked.out)
    for trouble in results.troubles:
        print(f"TROUBLE: {trouble}", file=sys.stderr)
    missed = any(target.missed(results) for each in every.values() for target in each.targets)
    return 1 if results.troubles or (asked.strict and missed) else 0


def measure(asked: argparse.Namespace, results: Results) -> None:
    """Run the chosen workloads; their results remain also if this is interrupted."""
    chosen = [workloads.load()[name] for name in asked.workloads]
    round_trip = asked.rtt_ms / 1000 if "rtt" in (asked.settings or ["rtt"]) else 0.0
    with (
        masters.started(max(each.masters for each in chosen), round_trip) as servers,
        ProcessGroup("redlock-benchmark-") as processes,
    ):
        results.about["server"] = servers.version
        if round_trip:
            results.about["round trip"] = f"{asked.rtt_ms:g} ms, held by {servers.proxy}"
        plan = Plan(
            servers,
            results,
            processes,
            asked.rounds,
            asked.seconds,
            peers=asked.peers,
            settings=asked.settings or (),
            repeats=asked.repeats,
        )
        results.about["left out"] = plan.left_out
        for each in chosen:
            print(f"{each.name} ...", flush=True)
            plan.run(each)


def peer_versions(names: set[str]) -> dict[str, str]:
    """Return the versions of the libraries that were measured."""
    used = {CONTENDERS[name].environment for name in names & {*CONTENDERS}} - {"project"}
    found: dict[str, str] = {}
    for environment in sorted(used):
        found |= environments.versions(environment)
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    others = [name for name, contender in CONTENDERS.items() if not contender.ours]
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measure redlock_django, its peers and bare sockets.",
        epilog="Without --pin, --rtt or --free, every workload runs in the settings of its "
        f"targets. `python -m benchmarks NAME` runs one of {', '.join(PROGRAMS)} instead. See "
        "benchmarks/README.md.",
    )
    parser.add_argument(
        "--workloads",
        type=_some_of({*workloads.NAMES}),
        default=workloads.NAMES,
        metavar="A,B",
        help=f"a selection of: {', '.join(workloads.NAMES)} (default: all)",
    )
    parser.add_argument(
        "--peers",
        type=lambda text: frozenset(_some_of({*others})(text)),
        metavar="A,B",
        help=f"a selection of: {', '.join(others)} (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument(
        "--repeats",
        type=int,
        default=60,
        help="number of measurements that may be repeated because other programs use the machine "
        "(default: 60)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per job (default: 1)")
    settings = parser.add_argument_group("settings")
    for setting, text in (
        ("pin", "masters on one processor, the client on another"),
        ("rtt", "through a proxy that delays every reply"),
        ("stub", "masters that grant at once and cost nothing"),
        ("free", "scheduled by the kernel"),
    ):
        settings.add_argument(
            f"--{setting}", dest="settings", action="append_const", const=setting, help=text
        )
    settings.add_argument(
        "--rtt-ms", type=float, default=1.0, help="delay of the proxy in ms (default: 1)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of 0.1 s, to see whether everything runs",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 if a target is missed, too"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE / ".results",
        metavar="FOLDER",
        help="folder of benchmarks.json, .md and .svg (default: benchmarks/.results)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="JSON",
        help="only write the report of this file",
    )
    return parser


def _some_of(known: set[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        asked = [part.strip() for part in text.split(",") if part.strip()]
        if unknown := set(asked) - known:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: not one of {', '.join(sorted(known))}"
            )
        return asked

    return read


def interrupt(number: int, frame: object) -> None:
    """End the measurement, so that what it has is written.

    `timeout 20m uv run ...` sends SIGTERM to uv and to this process, and uv passes it on: only the
    first signal counts.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PROGRAMS:
        program = sys.argv.pop(1)
        sys.argv[0] = f"benchmarks {program}"
        sys.exit(import_module(f"benchmarks.programs.{program}").main())
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    sys.exit(main())
