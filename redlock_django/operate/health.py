"""How the masters are: up or silent, trusted or not, and what is wrong with them for locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.utils.asyncio import async_unsafe

from redlock_django.backends.base import BaseBackend
from redlock_django.conf.masters import caches_on
from redlock_django.engine.commands import Deployment
from redlock_django.engine.quorum import quorum
from redlock_django.locking.handler import locks
from redlock_django.operate.inspection import under_way
from redlock_django.wire.acl import LOCKS, WAITING
from redlock_django.wire.survey import Health, Survey

HARMLESS = frozenset({"policy", "cache", "waiting"})
"""Faults of which people are told, and with which a master is counted all the same."""


@dataclass(frozen=True, kw_only=True)
class MasterStatus:
    """How one master is; `health` is None, and `reason` says why, where it did not answer.

    `faults` are pairs of a code and a text: `unreachable`, those of `wire.join.faults`, `acl`,
    `twin` (the same server as another), `clock`, `deployment`, `untrusted`, and the HARMLESS
    ones: `policy` (it would evict locks if it had a limit), `cache` (a cache's `clear()`
    empties it), `waiting` (its ACL lets it call nobody who waits).
    `counted` is whether its votes count now.
    """

    name: str
    health: Health | None
    reason: str
    faults: tuple[tuple[str, str], ...]
    counted: bool


@async_unsafe
def master_status(
    using: str = "default", *, survey: Survey | None = None
) -> tuple[MasterStatus, ...]:
    """Ask every master of an alias how it is, in a survey under way or one of its own.

    Raises InvalidRedlock only.
    """
    with under_way(using, survey) as survey:
        return _status(survey, locks[using].backend)


class Quorum(NamedTuple):
    """How many `masters` a group has, how many of them are `counted`, and how many `needed`.

    `group` names it in front of a sentence ("group 2: "), and is "" where there is one only.
    """

    group: str
    masters: int
    counted: int
    needed: int


def quorums(statuses: Sequence[MasterStatus], using: str) -> list[Quorum]:
    """Give how far each group of masters of an alias is from a quorum."""
    spans = locks[using].backend.spans
    return [
        Quorum(
            f"group {number}: " if len(spans) > 1 else "",
            len(span),
            sum(statuses[index].counted for index in span),
            quorum(len(span)),
        )
        for number, span in enumerate(spans, 1)
    ]


def _status(survey: Survey, backend: BaseBackend) -> tuple[MasterStatus, ...]:
    deployment = backend.deployment
    health = survey.health()
    offsets = sorted(h.offset for h in health.values())
    middle = offsets[len(offsets) // 2] if offsets else 0.0
    statuses = []
    for index, name in enumerate(backend.names):
        one = health.get(index)
        reason = "" if one else survey.silent.get(index, "did not answer")
        if one is None:
            faults = [("acl" if index in survey.forbidden else "unreachable", reason)]
        else:
            others = [backend.names[p] for p, h in health.items() if h.run_id == one.run_id]
            faults = list(_faults(one, deployment, middle, [n for n in others if n != name]))
        harmless = HARMLESS | backend.tolerate
        counted = all(code in harmless for code, _ in faults)
        if backend.addresses and (caches := caches_on(backend.addresses[index])):
            named = ", ".join(map(repr, caches))
            faults.append(("cache", f"clearing the cache {named} empties it: give locks their own"))
        statuses.append(
            MasterStatus(
                name=name, health=one, reason=reason, faults=tuple(faults), counted=counted
            )
        )
    return tuple(statuses)


def _faults(
    one: Health, deployment: Deployment, middle: float, twins: Sequence[str]
) -> Iterator[tuple[str, str]]:
    yield from one.faults
    if one.policy != "noeviction" and not one.maxmemory:
        text = f"would evict locks if it had a maxmemory (maxmemory-policy {one.policy})"
        yield "policy", f"{text}: set it to noeviction"
    if missing := [command for command in one.forbidden if command in LOCKS]:
        text = (
            f"its ACL forbids {', '.join(missing)} (docs/reference/acl.md has the least that works)"
        )
        yield "acl", text
    if missing := [command for command in one.forbidden if command in WAITING]:
        text = (
            f"its ACL forbids {', '.join(missing)}: it cannot wake waiters (docs/reference/acl.md)"
        )
        yield "waiting", text
    if twins:
        yield "twin", f"is the same server as {', '.join(twins)}: none of them is counted"
    if abs(one.offset - middle) > deployment.max_clock_skew:
        yield "clock", f"its clock is {one.offset - middle:+.1f} s off the other masters'"
    if one.deployment not in ("", deployment.fingerprint):
        other = f"its marker says {one.deployment!r}, this alias {deployment.fingerprint!r}"
        other += " (after a planned change: manage.py redlock_init --reconfigure)"
        yield "deployment", other
    elif one.ready_in is None and deployment.restart_delay and "get" not in one.forbidden:
        yield "untrusted", "is not trusted yet: it is fresh, or has restarted"
    elif one.ready_in:
        yield "untrusted", f"has restarted: trusted in {one.ready_in:.0f} s"
