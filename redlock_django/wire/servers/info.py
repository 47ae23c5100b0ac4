"""The report of a server on itself (INFO), and the faults that make it unsafe for locks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from redlock_django.engine.inspection.faults import Fault, fault
from redlock_django.engine.inspection.printable import printable


def read_info(answer: bytes | str) -> dict[str, str]:
    """Return the fields of INFO."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    fields = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {printable(name): printable(value) for name, _, value in fields}


def run_of(info: dict[str, str]) -> str:
    """Return what changes when a server may have forgotten locks, as hex digits, from its INFO.

    That is its run_id, which changes at a restart, and what else it may have forgotten without a
    restart. A server that has taken another server's data by replication, and then became a master
    again, has a second replication id; its first one is new. A server that has evicted keys counts
    them. While its policy still lets it evict, the number changes nothing: such a server is not
    counted, or the evictions are tolerated.
    """
    copied = info.get("master_replid2", "").strip("0")
    evicted = "" if may_evict(info) else info.get("evicted_keys", "").strip()
    return (
        info.get("run_id", "")
        + (info.get("master_replid", "") if copied else "")
        + (evicted if evicted.isdecimal() and int(evicted) else "")
    )


def may_evict(info: dict[str, str]) -> bool:
    """Return whether a server deletes keys when its memory is full."""
    policy = info.get("maxmemory_policy", "noeviction")
    return info.get("maxmemory", "0") != "0" and policy != "noeviction"


def goes_on_alone(info: dict[str, str]) -> bool:
    """Return whether a primary that has a replica accepts writes when it is cut off from it."""
    # The field is there only with min-replicas-to-write.
    return info.get("connected_slaves", "0") != "0" and "min_slaves_good_slaves" not in info


def faults(info: dict[str, str]) -> Iterator[Fault]:
    """Yield what makes a server unsafe for locks, the worst first."""
    version = info.get("redis_version", "0")
    major = re.match(r"\d+", version)
    if major is None or int(major[0]) < 5:
        yield fault("version", version=version)
    if not re.fullmatch("[0-9a-fA-F]+", info.get("run_id", "")):
        yield fault("run_id", field="run_id", event="restart")
    if info.get("loading", "0") != "0":
        yield fault("loading")
    if info.get("cluster_enabled", "0") == "1":
        yield fault("cluster")
    if info.get("redis_mode") == "sentinel":
        yield fault("sentinel")
    elif not info.get("role"):
        yield fault("run_id", field="role", event="failover")
    if info.get("role", "master") != "master":
        master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        yield fault("replica", master=master)
    if may_evict(info):
        yield fault("eviction", policy=info["maxmemory_policy"])
