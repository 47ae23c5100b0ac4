"""The table of targets, and why those that were missed were missed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.reasons import reason
from benchmarks.results import Results, written
from benchmarks.targets import TARGETS, Target


def targets(results: Results) -> str:
    """The table of targets; those that were not to be measured are left out."""
    lines = ["| Work | Figure | Target | Measured (rounds) | Met |", "|---|---|---|---|---|"]
    met = total = 0
    for target in TARGETS:
        value = target.measured(results)
        if value is None and not target.has_failed(results):
            continue
        total += 1
        measured, verdict = "", "**failed**"
        if value is not None:
            spread = target.values(results)
            between = f" ({written(min(spread))} to {written(max(spread))})"
            measured = f"{written(value)}{target.unit}{between if len(spread) > 1 else ''}"
            verdict = "yes" if target.met(value) else "**no**"
            met += target.met(value)
        bound = f"{'≤' if target.most else '≥'} {written(target.bound)}{target.unit}"
        lines.append(f"| {target.work} | {target.what} | {bound} | {measured} | {verdict} |")
    return "\n".join([*lines, "", f"{met} of {total} met.", ""])


def missed(results: Results) -> Iterator[str]:
    """Yield the section about missed targets: values, profiles, and what would help."""
    groups: dict[str, list[Target]] = {}
    for target in TARGETS:
        value = target.measured(results)
        if value is not None and not target.met(value):
            groups.setdefault(target.profile, []).append(target)
    if not groups:
        return
    yield "## Not met\n"
    for profile, missing in groups.items():
        for target in missing:
            yield f"- {target.work}, {target.what}: {written(target.measured(results) or 0)}"
        found = list(results.find(workload="profiles", case=profile))
        if found:
            yield f"\n  cProfile of {profile}: {_profile(found[-1].figures['profile'])}"
        yield f"\n  {reason(profile, results)}\n"


# Where the kernel is entered. cProfile does not see the send that `Link.send` unpacks from a map.
_KERNEL = re.compile(r"poll of|of _socket.socket|wire/link/link.py:send$")


def _profile(lines: list[tuple[float, str]]) -> str:
    """The share of the kernel, then of our files, then of the rest of Python."""
    kernel = sum(share for share, name in lines if _KERNEL.search(name))
    files: defaultdict[str, float] = defaultdict(float)
    for share, name in lines:
        if not _KERNEL.search(name):
            files[name.partition(":")[0] if ":" in name else "functions in C"] += share
    ranked = sorted(files.items(), key=lambda item: -item[1])[:9]
    rest = ", ".join(f"`{name}` {share:.0%}" for name, share in ranked)
    return f"{kernel:.0%} of the time in poll, send and recv; {rest}."
