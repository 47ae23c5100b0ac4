"""The faults of a master, for locks, as far as its own report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    deployment = survey.deployment
    reports = _Reports(deployment, survey.health())
    servers = []
    for index, name in enumerate(deployment.names):
        report, reason = reports.by_index.get(index), ""
        if report is None:
            reason = survey.silent[index]
            code = "acl" if index in survey.forbidden else "unreachable"
            faults = [fault(code, why=reason, rights=least_acl(deployment.prefix))]
        else:
            faults = [*reports.faults(index, report)]
        addresses = settings.addresses  # none of masters in memory
        if addresses and (caches := caches_on(addresses[index])):
            faults.append(fault("cache", caches=", ".join(map(repr, caches))))
        counted = all(FAULTS[one.code].counts or one.code in settings.tolerate for one in faults)
        server = ServerHealth(
            name=name, health=report, reason=reason, faults=tuple(faults), counted=counted
        )
        servers.append(server)
    return servers


class _Reports:
    """The reports of all masters that answered, and the faults that follow from them together."""

    def __init__(self, deployment: Deployment, by_index: Mapping[int, Health]) -> None:
        self.by_index = by_index
        self._deployment = deployment
        names, every = deployment.names, by_index.values()
        self._missing = [name for index, name in enumerate(names) if index not in by_index]
        # That of a client with these settings that has asked all masters.
        self._fingerprint = deployment.fingerprint
        if not self._missing:
            sights = [Sight(0.0, r.run_id, r.deployment, r.ready_in is not None) for r in every]
            self._fingerprint = same_servers(self._fingerprint, sights)
        self._foreign = [
            names[index]
            for index, report in by_index.items()
            if report.deployment not in ("", self._fingerprint)
        ]
        offsets = sorted(one.offset for one in every)
        self._offset = offsets[len(offsets) // 2] if offsets else 0.0  # the middle one
        is_trusted = any(one.ready_in == 0 and one.deployment for one in every)
        self._is_used = is_trusted or deployment.failover  # no other server could show it
        self._is_new = not any(one.key for one in every)  # else redlock_init refuses

    def faults(self, index: int, report: Health) -> Iterator[Fault]:
        """Yield the faults of one master."""
        deployment, names = self._deployment, self._deployment.names
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
        runs = [
            (names[other], one.run_id) for other, one in self.by_index.items() if other != index
        ]
        if twins := [name for name, run_id in runs if run_id == report.run_id != ""]:
            yield fault("twin", twins=", ".join(twins))
        if abs(off := report.offset - self._offset) > deployment.max_clock_skew:
            yield fault("clock", off=off)
        if names[index] in self._foreign:
            marker, alias = report.deployment, self._fingerprint
            yield fault("deployment", marker=marker, alias=alias)
            return
        if why := self._why_untrusted(report):
            yield fault("untrusted", why=why)
        if self._foreign:  # no master is asked for a lock
            yield fault("conflict", other=self._foreign[0])

    def _why_untrusted(self, report: Health) -> str:
        """Return why a master is not trusted, and what to do, as `redlock_init` would answer."""
        delay, left = self._deployment.restart_delay, report.ready_in
        if left == 0 or (left is None and (not delay or "get" in report.forbidden)):
            return ""
        init = "run 'manage.py redlock_init'"
        when = (
            f"trusted in {left:.0f} s" if left else f"trusted {delay:.0f} s after a client meets it"
        )
        if report.key:
            return (
                f"may have forgotten locks, and is not new (it stores {report.key!r}): {when}; at "
                "once only with 'manage.py redlock_init --force'"
            )
        if report.restarted:
            hint = f" (if no lock can be held: {init})" if self._is_new else ""
            return f"has restarted: {when}{hint}"
        if not self._is_new or self._is_used:
            may_be_new = self._is_new and (not left or self._deployment.failover)
            hint = f" (if it is new: {init})" if may_be_new else ""
            if left:
                return f"has restarted, was emptied or is new: {when}{hint}"
            return f"new or emptied: has no marker yet{hint}"
        if self._missing:
            return f"{NEW} once {', '.join(self._missing)} can be asked"
        return f"{NEW} (if it was emptied{f' or restarted: {when}' if left else ': wait'})"
