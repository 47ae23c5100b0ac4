"""The faults of a master, for locks, as far as its own report shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from redlock_django.backends.inspection.results import HARMLESS, ServerHealth, twin_fault
from redlock_django.backends.redlock.masters import caches_on
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.membership import NEW, Sight, same_servers
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.servers.acl import LOCKS, WAITING
from redlock_django.wire.servers.address import Address


def health_of(
    index: int,
    reports: Mapping[int, Health],
    *,
    deployment: Deployment,
    addresses: Sequence[Address],
    tolerate: frozenset[str],
    silent: Mapping[int, str],
    forbidden: frozenset[int],
) -> ServerHealth:
    """Return the health of the master with this index, given what all masters reported.

    The codes of its faults are `unreachable`, those of `wire.servers.info.faults`, `errors`
    (commands that locks need fail), `acl`, `twin` (the same server as another), `clock`,
    `deployment`, `untrusted`, and the HARMLESS ones: `policy` (it would evict locks if it had a
    limit), `cache` (a cache's `clear()` empties it), `waiting` (it cannot call waiters) and `alone`
    (with `failover`: it accepts writes when it is cut off from its replica). Masters in `forbidden`
    are silent because of their ACL.
    """
    name, report, reason = deployment.names[index], reports.get(index), ""
    if report is None:
        reason = silent.get(index, "did not answer")
        faults = [("acl" if index in forbidden else "unreachable", reason)]
    else:
        twins = [
            deployment.names[other]
            for other, one in reports.items()
            if one.run_id == report.run_id != "" and other != index
        ]
        offsets = sorted(one.offset for one in reports.values())
        fingerprint = _fingerprint(deployment, reports.values())
        is_used = any(one.ready_in == 0 and one.deployment for one in reports.values())
        is_used = is_used or deployment.failover  # no other server could show it
        middle = offsets[len(offsets) // 2]
        faults = list(_faults(report, deployment, fingerprint, middle, twins, is_used=is_used))
    counted = all(code in HARMLESS | tolerate for code, _ in faults)
    if addresses and (caches := caches_on(addresses[index])):
        named = ", ".join(map(repr, caches))
        faults.append(("cache", f"clearing the cache {named} empties it: give locks their own"))
    return ServerHealth(
        name=name, health=report, reason=reason, faults=tuple(faults), counted=counted
    )


def _fingerprint(deployment: Deployment, reports: Collection[Health]) -> str:
    """Return the fingerprint of a client with these settings that has asked all masters."""
    if deployment.shard_count > 1 or len(reports) < deployment.masters:
        return deployment.fingerprint
    sights = [Sight(0.0, r.run_id, r.deployment, r.ready_in is not None) for r in reports]
    return same_servers(deployment.fingerprint, sights)


def _faults(
    report: Health,
    deployment: Deployment,
    fingerprint: str,
    middle: float,
    twins: Sequence[str],
    *,
    is_used: bool,
) -> Iterator[tuple[str, str]]:
    yield from report.faults
    if report.policy != "noeviction" and not report.maxmemory:
        text = f"would evict locks if it had a maxmemory (maxmemory-policy {report.policy})"
        yield "policy", f"{text}: set it to noeviction"
    if deployment.failover and report.goes_on_alone:
        text = "would go on beside a promoted replica: set min-replicas-to-write to 1 on it"
        yield "alone", text
    if missing := [command for command in report.forbidden if command in LOCKS]:
        text = (
            f"its ACL forbids {', '.join(missing)} (docs/reference/acl.md has the least that works)"
        )
        yield "acl", text
    if missing := [command for command in report.forbidden if command in WAITING]:
        text = (
            f"its ACL forbids {', '.join(missing)}: it cannot wake waiters (docs/reference/acl.md)"
        )
        yield "waiting", text
    if twins:
        yield twin_fault(twins)
    if abs(report.offset - middle) > deployment.max_clock_skew:
        yield "clock", f"its clock is {report.offset - middle:+.1f} s off the other masters'"
    if report.deployment not in ("", fingerprint):
        text = "belongs to another deployment (after a planned change: manage.py redlock_init "
        text += f"--reconfigure): its marker says {report.deployment!r}, this alias {fingerprint!r}"
        yield "deployment", text
    elif report.ready_in is None and deployment.restart_delay and "get" not in report.forbidden:
        text = "new or emptied: has no marker yet (if it is new: run 'manage.py redlock_init')"
        yield "untrusted", text if is_used else f"{NEW} (if it was emptied: wait)"
    elif report.ready_in:
        when = f"trusted in {report.ready_in:.0f} s"
        text = f"has restarted, was emptied or is new: {when}"
        yield "untrusted", text if is_used else f"{NEW} (if it was emptied or restarted: {when})"
