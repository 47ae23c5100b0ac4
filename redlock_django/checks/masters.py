"""Checks that connect to the masters. They run only with `check --deploy --database default`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error
from django.utils.text import capfirst

from redlock_django.backends.redlock.settings import RedlockSettings
from redlock_django.checks import MASTERS_TAG
from redlock_django.conf.settings import load
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.operate.health import (
    QuorumHealth,
    ServerHealth,
    counted,
    master_status,
    server_word,
)

_IDS = {
    "version": "E030",
    "run_id": "E030",
    "sentinel": "E030",
    "cluster": "E031",
    "replica": "E032",
    "eviction": "E033",
    "twin": "E034",
    "clock": "E035",
    "deployment": "E036",
    "acl": "E037",
    "errors": "E059",
    "unreachable": "W038",
    "loading": "W039",
    "untrusted": "W040",
    "policy": "W041",
    "alone": "W051",
}
"""The ids by the codes of faults; a fault that TOLERATE names is a warning with the same number."""


def check_command(**_: Any) -> list[CheckMessage]:
    """Return W019: a command line that asks for the checks of the masters, and runs none."""
    _program, *arguments = sys.argv
    line = [part for argument in arguments for part in argument.split("=")]
    if line[:1] != ["check"] or MASTERS_TAG not in line[1:]:
        return []
    if "--deploy" in line and "--database" in line:
        return []
    return [
        checks.Warning(
            "The masters were not asked: their checks need --deploy and --database, as Django's "
            "own checks of databases do.",
            hint=f"Run 'manage.py check --deploy --tag {MASTERS_TAG} --database default'.",
            id="redlock_django.W019",
        )
    ]


def check_masters(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return E030 to E043, E059, W051: the faults that `redlock_status` shows for each master.

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
                    id="redlock_django.E043",
                )
            )
    return messages


def _faults(alias: str, one: ServerHealth) -> Iterator[CheckMessage]:
    store = load(alias).store
    for fault in one.faults:
        number = _IDS.get(fault.code, "")
        if number.startswith("E") and fault.code in store.tolerate:
            number = f"W{number[1:]}"
        if number:
            yield (Error if number.startswith("E") else checks.Warning)(
                f"REDLOCK[{alias!r}]: {one.name}: {fault.text}",
                hint=f"{capfirst(fault.remedy)}.",
                id=f"redlock_django.{number}",
            )
    if not isinstance(store, RedlockSettings) or one.health is None or one.health.persistent:
        return
    if store.addresses and not store.restart_delay:
        yield checks.Warning(
            f"REDLOCK[{alias!r}]: {one.name}: a restart loses its locks (appendonly no), and with "
            "RESTART_DELAY = 0 clients do not wait until these locks have expired.",
            hint="Enable appendonly with appendfsync always, or set RESTART_DELAY.",
            id="redlock_django.W042",
        )
