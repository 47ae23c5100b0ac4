"""How costs grow: with masters, threads, tasks, connections and held locks."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Results, Where, written


def growth(results: Results) -> Iterator[str]:
    """A line on how each thing grows."""

    def of(workload: str, setting: str, case: str, name: str, figure: str) -> float | None:
        return results.median(Where(workload, setting, case, name), figure)

    slopes = []
    for name in results.names("contender", workload="growth"):
        one = of("growth", "pin", "1", name, "p50_us")
        nine = of("growth", "pin", "9", name, "p50_us")
        if one and nine:
            slopes.append(f"{name} {(nine - one) / 8:.0f}")
    if slopes:
        yield f"**Masters**: linear; µs for each further one, 1 to 9, pinned: {', '.join(slopes)}."
    for workload, name, unit in (
        ("threads", "ours", "threads"),
        ("tasks", "ours async", "tasks"),
    ):
        cases = results.names("case", workload=workload)
        rates = [(case, of(workload, "free", case, name, "per_s")) for case in cases]
        known = [(case, rate) for case, rate in rates if rate]
        if known:
            said = ", ".join(f"{written(int(case))}: {written(rate)}" for case, rate in known)
            yield f"**{unit.capitalize()}**: pairs/s by {unit}: {said}."
        opened = [
            f"{other} {connections:.0f}"
            for other in results.names("contender", workload=workload, case=cases[-1])
            if (connections := of(workload, "free", cases[-1], other, "connections"))
        ] if cases else []  # fmt: skip
        if opened:
            yield (
                f"**Connections** of a process with {cases[-1]} {unit}, to all five masters "
                f"together: {', '.join(opened)}."
            )
    counts = [case for case in results.names("case", workload="held") if case.isdigit()]
    held = [(case, of("held", "free", case, "ours async", "p50_us")) for case in counts]
    beside = ", ".join(f"{written(int(case))}: {p50:.0f}" for case, p50 in held if p50)
    if beside:
        yield f"**Held locks**: p50 of a pair in µs while so many others are held: {beside}."
    most = counts[-1] if counts else ""
    master = of("held", "free", most, "ours async", "master_bytes")
    client = of("held", "free", most, "ours async", "client_bytes")
    traced = of("held", "free", "1 000 traced", "ours async", "client_bytes_traced")
    if master and client:
        yield (
            f"**Memory** of a held lock, of {written(int(most))}: {written(master)} bytes on each "
            f"master (lock, fence, index), {written(client)} resident in the client"
            + (f" ({written(traced)} by tracemalloc)." if traced else ".")
        )
