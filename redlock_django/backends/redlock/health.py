"""The faults of a master, for locks, as far as its own report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redlock_django.backends.inspection.results import HARMLESS, ServerHealth
from redlock_django.backends.redlock.masters import caches_on
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.membership import NEW, Sight, same_servers
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.servers.acl import LOCKS, WAITING
from redlock_django.wire.servers.address import Address


def health_of(
    reports: Mapping[int, Health],
    *,
    deployment: Deployment,
    addresses: Sequence[Address],
    tolerate: frozenset[str],
    silent: Mapping[int, str],
    forbidden: frozenset[int],
) -> list[ServerHealth]:
    """Return the health of every master, in order, given what they reported, by index.

    The codes of the faults are `unreachable`, those of `wire.servers.info.faults`, `errors`
    (commands that locks need fail), `acl`, `twin` (the same server as another), `clock`,
    `deployment`, `conflict` (another master has that fault), `untrusted`, and the HARMLESS ones:
    `policy` (it would evict locks if it had a limit), `cache` (a cache's `clear()` empties it),
    `waiting` (it cannot call waiters) and `alone` (with `failover`: it accepts writes when it is
    cut off from its replica). Masters in `forbidden` are silent because of their ACL.
    """
    every = _Reports.of(deployment, reports)
    servers = []
    for index, name in enumerate(deployment.names):
        report, reason = reports.get(index), ""
        if report is None:
            reason = silent.get(index, "did not answer")
            faults = [("acl" if index in forbidden else "unreachable", reason)]
        else:
            faults = [*_faults(index, report, every), *_untrusted(report, every)]
        counted = all(code in HARMLESS | tolerate for code, _ in faults)
        if addresses and (caches := caches_on(addresses[index])):
            named = ", ".join(map(repr, caches))
            faults.append(("cache", f"clearing the cache {named} empties it: give locks their own"))
        server = ServerHealth(
            name=name, health=report, reason=reason, faults=tuple(faults), counted=counted
        )
        servers.append(server)
    return _with_conflict(servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reports:
    """The facts that follow from the reports of all masters together.

    `fingerprint` is that of a client with these settings that has asked them all, `offset` the
    middle one of their clocks. `missing` are the masters that did not answer. `is_used` is whether
    a master is trusted, `is_new` whether no master stores a lock or a fence.
    """

    deployment: Deployment
    reports: Mapping[int, Health]
    fingerprint: str
    offset: float
    missing: Sequence[str]
    is_used: bool
    is_new: bool

    @classmethod
    def of(cls, deployment: Deployment, reports: Mapping[int, Health]) -> _Reports:
        every = reports.values()
        fingerprint = deployment.fingerprint
        if len(every) == deployment.masters:
            sights = [Sight(0.0, r.run_id, r.deployment, r.ready_in is not None) for r in every]
            fingerprint = same_servers(fingerprint, sights)
        offsets = sorted(one.offset for one in every)
        is_used = any(one.ready_in == 0 and one.deployment for one in every)
        return cls(
            deployment=deployment,
            reports=reports,
            fingerprint=fingerprint,
            offset=offsets[len(offsets) // 2] if offsets else 0.0,
            missing=[name for n, name in enumerate(deployment.names) if n not in reports],
            is_used=is_used or deployment.failover,  # no other server could show it
            is_new=not any(one.key for one in every),  # else redlock_init refuses
        )

    def twins(self, index: int) -> list[str]:
        """Return the other names of a server."""
        run_id = self.reports[index].run_id
        return [
            self.deployment.names[other]
            for other, one in self.reports.items()
            if one.run_id == run_id != "" and other != index
        ]


def _with_conflict(servers: Sequence[ServerHealth]) -> list[ServerHealth]:
    """Report, and do not count, the masters that are not asked because of another deployment."""
    other = next((s.name for s in servers if "deployment" in dict(s.faults)), "")
    if not other:
        return list(servers)
    fault = ("conflict", f"is asked for no lock, because {other} belongs to another deployment")
    return [
        server
        if server.health is None or "deployment" in dict(server.faults)
        else replace(server, faults=(*server.faults, fault), counted=False)
        for server in servers
    ]


def _faults(index: int, report: Health, every: _Reports) -> Iterator[tuple[str, str]]:
    deployment, fingerprint = every.deployment, every.fingerprint
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
    if twins := every.twins(index):
        yield "twin", f"is the same server as {', '.join(twins)}: none of them is counted"
    if abs(off := report.offset - every.offset) > deployment.max_clock_skew:
        yield "clock", f"its clock is {off:+.1f} s off the other masters'"
    if report.deployment not in ("", fingerprint):
        text = "belongs to another deployment (after a planned change: manage.py redlock_init "
        text += f"--reconfigure): its marker says {report.deployment!r}, this alias {fingerprint!r}"
        yield "deployment", text


def _untrusted(report: Health, every: _Reports) -> Iterator[tuple[str, str]]:
    """Yield why a master is not trusted, and what to do, as `redlock_init` would answer."""
    if report.deployment not in ("", every.fingerprint):
        return
    deployment, is_new = every.deployment, every.is_new
    left, delay = report.ready_in, deployment.restart_delay
    if left == 0 or (left is None and (not delay or "get" in report.forbidden)):
        return
    init = "run 'manage.py redlock_init'"
    when = f"trusted in {left:.0f} s" if left else f"trusted {delay:.0f} s after a client meets it"
    if report.key:
        text = f"may have forgotten locks, and is not new (it stores {report.key!r}): {when}; "
        text += "at once only with 'manage.py redlock_init --force'"
    elif report.restarted:
        text = f"has restarted: {when}{f' (if no lock can be held: {init})' if is_new else ''}"
    elif not is_new or every.is_used:
        unmarked = "new or emptied: has no marker yet"
        text = f"has restarted, was emptied or is new: {when}" if left else unmarked
        if is_new and (not left or deployment.failover):
            text += f" (if it is new: {init})"
    elif every.missing:
        text = f"{NEW} once {', '.join(every.missing)} can be asked"
    else:
        text = f"{NEW} (if it was emptied{f' or restarted: {when}' if left else ': wait'})"
    yield "untrusted", text
