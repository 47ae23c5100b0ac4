"""The faults of a master, for locks, as far as its own report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from redlock_django.backends.inspection.results import ServerHealth
from redlock_django.backends.redis.masters import caches_on
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.engine.inspection.faults import FAULTS, Fault, fault
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.membership import NEW, Sight, same_servers
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.servers.acl import LOCKS, WAITING, least_acl
from redlock_django.wire.servers.survey import Survey


def health_of(survey: Survey, settings: RedlockSettings) -> list[ServerHealth]:
    """Ask every master for its health, and return it in order."""
    deployment, reports = survey.deployment, survey.health()
    every = _Reports.of(deployment, reports)
    servers = []
    for index, name in enumerate(deployment.names):
        report, reason = reports.get(index), ""
        if report is None:
            reason = survey.silent.get(index, "did not answer")
            code = "acl" if index in survey.forbidden else "unreachable"
            faults = [fault(code, why=reason, rights=least_acl(deployment.prefix))]
        else:
            faults = [*_faults(index, report, every), *_untrusted(report, every)]
        counted = all(FAULTS[one.code].counts or one.code in settings.tolerate for one in faults)
        addresses = settings.addresses  # none of masters in memory
        if addresses and (caches := caches_on(addresses[index])):
            faults.append(fault("cache", caches=", ".join(map(repr, caches))))
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
    others = [s.name for s in servers if any(one.code == "deployment" for one in s.faults)]
    if not others:
        return list(servers)
    conflict = fault("conflict", other=others[0])
    return [
        server
        if server.health is None or server.name in others
        else replace(server, faults=(*server.faults, conflict), counted=False)
        for server in servers
    ]


def _faults(index: int, report: Health, every: _Reports) -> Iterator[Fault]:
    deployment, fingerprint = every.deployment, every.fingerprint
    yield from report.faults
    if report.policy != "noeviction" and not report.maxmemory:
        yield fault("policy", policy=report.policy)
    if deployment.failover and report.goes_on_alone:
        yield fault("alone")
    if missing := [command for command in report.forbidden if command in LOCKS]:
        why = f"its ACL forbids {', '.join(missing)}"
        yield fault("acl", why=why, rights=least_acl(deployment.prefix))
    if missing := [command for command in report.forbidden if command in WAITING]:
        yield fault("waiting", why=f"its ACL forbids {', '.join(missing)}")
    if twins := every.twins(index):
        yield fault("twin", twins=", ".join(twins))
    if abs(off := report.offset - every.offset) > deployment.max_clock_skew:
        yield fault("clock", off=off)
    if report.deployment not in ("", fingerprint):
        yield fault("deployment", marker=report.deployment, alias=fingerprint)


def _untrusted(report: Health, every: _Reports) -> Iterator[Fault]:
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
    yield fault("untrusted", why=text)
