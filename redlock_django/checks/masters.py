"""What the masters say themselves: asked by `check --deploy --database default`, and only then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register

from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.handler import locks
from redlock_django.operate.health import ServerHealth, master_status, quorums
from redlock_django.wire.acl import least_acl

MASTERS_TAG = "redlock_masters"

_ERRORS = {
    "version": "E030",
    "cluster": "E031",
    "replica": "E032",
    "eviction": "E033",
    "twin": "E034",
    "clock": "E035",
    "deployment": "E036",
    "acl": "E037",
}
_WARNINGS = {"unreachable": "W038", "loading": "W039", "untrusted": "W040", "policy": "W041"}
_HINTS = {
    "version": "Upgrade it.",
    "cluster": "Use servers that know nothing of each other.",
    "replica": "Name masters, not replicas; a failover forgets locks.",
    "eviction": "CONFIG SET maxmemory-policy noeviction, and in its configuration file.",
    "policy": "CONFIG SET maxmemory-policy noeviction, and in its configuration file.",
    "twin": "Name every server once.",
    "clock": "Keep the clocks of all masters with NTP, slewing rather than stepping.",
    "deployment": "Give all clients the same numbers, or run 'manage.py redlock_init "
    "--reconfigure' after a planned change.",
    "untrusted": "Wait, or run 'manage.py redlock_init' if the masters are new.",
}


@register(MASTERS_TAG, Tags.database, deploy=True)
def check_masters(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """E030 to E043: what `redlock_status` says of each master.

    As Django's own checks of databases it asks nobody unless `--database` allows it.
    """
    if not databases:
        return []
    messages: list[CheckMessage] = []
    for alias in locks:
        try:
            masters = master_status(alias)
        except InvalidRedlock:
            continue  # E001 tells of it
        for one in masters:
            messages += _faults(alias, one)
        messages += [
            Error(
                f"REDLOCK[{alias!r}]: {one.label}only {one.counted} of {one.servers} masters are "
                "counted: no lock can be taken.",
                hint="'manage.py redlock_status' says why.",
                id="redlock_django.E043",
            )
            for one in quorums(masters)
            if one.counted < one.needed
        ]
    return messages


def _faults(alias: str, one: ServerHealth) -> Iterator[CheckMessage]:
    options = load(alias)
    hints = {
        **_HINTS,
        "acl": f"It must allow {least_acl(options.key_prefix)} (docs/reference/acl.md)",
    }
    for code, text in one.faults:
        message = f"REDLOCK[{alias!r}]: {one.name}: {text}"
        hint = hints.get(code)
        if code in _ERRORS and code not in options.tolerate:
            yield Error(message, hint=hint, id=f"redlock_django.{_ERRORS[code]}")
        elif number := {**_ERRORS, **_WARNINGS}.get(code):
            yield checks.Warning(message, hint=hint, id=f"redlock_django.W{number[1:]}")
    forgets = one.health is not None and not one.health.persistent
    if forgets and options.addresses and not options.restart_delay:
        yield checks.Warning(
            f"REDLOCK[{alias!r}]: {one.name}: a restart forgets its locks (appendonly no), and "
            "with a RESTART_DELAY of 0 nobody waits until they have run out.",
            hint="Turn on appendonly with appendfsync always, or set RESTART_DELAY.",
            id="redlock_django.W042",
        )
