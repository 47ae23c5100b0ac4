"""Checks that connect to the masters. They run only with `check --deploy --database default`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error
from django.utils.text import capfirst

from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import load
from redlock_django.engine.inspection.faults import FAULTS
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.operate.health import (
    QuorumHealth,
    ServerHealth,
    counted,
    master_status,
    server_word,
)

PASSING = ("unreachable", "loading", "untrusted")
"""The faults for which a server is not counted now, and that may pass by themselves."""


def check_masters(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return the faults that `redlock_status` shows for each master, and E028 without a quorum.

    E025: it is not counted. W026: it is not counted now. W027: it is counted, with a risk.
    Like Django's own database checks, it opens connections only if `--database` is given.
    """
    if not databases:
        return []
    messages: list[CheckMessage] = []
    for alias in locks:
        try:
            masters = master_status(alias)
        except InvalidRedlock:
            continue  # E001 reports it.
        for one in masters:
            messages += _faults(alias, one)
        quorum = QuorumHealth.of(masters)
        if not quorum.is_reached:
            messages.append(
                Error(
                    f"REDLOCK[{alias!r}]: {counted(quorum, server_word(alias))}, so no lock can be "
                    "acquired.",
                    hint="Run 'manage.py redlock_status' to see the reasons.",
                    id="redlock_django.E028",
                )
            )
    return messages


def _faults(alias: str, one: ServerHealth) -> Iterator[CheckMessage]:
    store = load(alias).store
    named = f"REDLOCK[{alias!r}]: {one.name}:"
    for fault in one.faults:
        message, hint = f"{named} {fault.text}", f"{capfirst(fault.remedy)}."
        if fault.code in PASSING:
            yield checks.Warning(message, hint=hint, id="redlock_django.W026")
        elif FAULTS[fault.code].counts or fault.code in store.tolerate:
            yield checks.Warning(message, hint=hint, id="redlock_django.W027")
        else:
            yield Error(message, hint=hint, id="redlock_django.E025")
    if not isinstance(store, RedlockSettings) or one.health is None or one.health.persistent:
        return
    if store.addresses and not store.deployment.restart_delay:
        yield checks.Warning(
            f"{named} a restart loses its locks (appendonly no), and with RESTART_DELAY = 0 "
            "clients do not wait until these locks have expired.",
            hint="Enable appendonly with appendfsync always, or set RESTART_DELAY.",
            id="redlock_django.W027",
        )
