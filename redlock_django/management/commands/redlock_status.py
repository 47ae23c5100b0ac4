"""`manage.py redlock_status`: the health of each master, and whether there is a quorum."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from redlock_django.locking.services import locks
from redlock_django.management.operator_command import OperatorCommand, add_format, iso
from redlock_django.management.single_run import BAD_ARGUMENTS, NO_QUORUM
from redlock_django.operate.health import (
    QuorumHealth,
    ServerHealth,
    caveat,
    counted,
    master_status,
    server_word,
)
from redlock_django.wire.links.late_masters import load_average

FAULTY = 1


class Command(OperatorCommand):
    """Exit status 0: no faults. 1: a quorum, but with faults. 2: usage. 3: no quorum."""

    help = (
        "Show the health of every server. Exit status: 0 if there are no faults; "
        f"{FAULTY} if there is a quorum but a server has a fault; {BAD_ARGUMENTS} for wrong "
        f"arguments or settings; {NO_QUORUM} if too few servers can be counted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Query the masters and show the results."""
        using, as_json = options["using"], options["format"] == "json"
        masters = master_status(using)
        quorum, word = QuorumHealth.of(masters), server_word(using)
        are_masters = locks[using].backend.servers_are_masters
        if as_json:
            document = {
                "using": using,
                "at": iso(time.time()),
                "caveat": caveat(locks[using].settings.store),
                "masters": [_described(one, are_masters) for one in masters],
            }
            numbers = {
                "counted": quorum.counted,
                "needed": quorum.needed,
                "quorum": quorum.is_reached,
            }
            self.write_json({**document, **numbers, "host": _host()})
        else:
            self.write_table(
                (word.upper(), "COUNTED", "LATENCY", "CLOCK", "VERSION", "AOF", "HELD", "FAULTS"),
                (_row(one, are_masters) for one in masters),
            )
        if what := caveat(locks[using].settings.store):
            self.stderr.write(what, self.style.WARNING)
        self._notes(masters)
        if any("did not answer" in one.reason for one in masters):
            self._explain(word)
        needed = f", {quorum.needed} are needed" if quorum.servers > 1 else ""
        summary = f"{using}: {counted(quorum, word)}{needed}."
        if not quorum.is_reached:
            raise CommandError(summary, returncode=NO_QUORUM)
        if any(one.faults for one in masters):
            raise CommandError(summary, returncode=FAULTY)
        if not as_json:
            self.stderr.write(summary, self.style.SUCCESS)

    def _explain(self, word: str) -> None:
        """Write whether a server that did not answer in time is slow, or this host."""
        load, processors = load_average()
        measured = f"its load average is {load:.1f} on {processors} processors"
        if load > processors:
            self.warn(f"This host is busy ({measured}), so {word}s may seem slow that are not.")
        else:
            self.warn(f"This host is not busy ({measured}): the {word}s or the network are slow.")

    def _notes(self, masters: tuple[ServerHealth, ...]) -> None:
        """Write every fault, and what to do about each kind of them."""
        remedies: dict[str, str] = {}
        for one in masters:
            for fault in one.faults:
                self.warn(f"{one.name} {fault.text}")
                remedies.setdefault(fault.code, fault.remedy)
        for code, remedy in remedies.items():
            self.stderr.write(f"{code}: {remedy}")


def _host() -> dict[str, Any]:
    load, processors = load_average()
    return {"busy": load > processors, "load": round(load, 2), "processors": processors}


def _described(one: ServerHealth, is_master: bool) -> dict[str, Any]:
    health = one.health
    known: dict[str, Any] = {}
    if health is not None:
        known = {
            "latency_ms": round(health.latency * 1000, 3),
            "clock_offset_ms": round(health.offset * 1000, 3),
            "server": health.server,
            "version": health.version,
            "held": health.held,
            "trusted_in": health.ready_in,
            "forbidden": list(health.forbidden),
        }
        if is_master:
            known |= {
                "uptime": health.uptime,
                "maxmemory_policy": health.policy,
                "maxmemory": health.maxmemory,
                "appendonly": health.persistent,
            }
    return {
        "name": one.name,
        "up": health is not None,
        "counted": one.counted,
        "reason": one.reason,
        "faults": [fault._asdict() for fault in one.faults],
        **dict.fromkeys(_KEYS),
        **known,
    }


_KEYS = (
    "latency_ms", "clock_offset_ms", "server", "version", "uptime", "maxmemory_policy",
    "maxmemory", "appendonly", "held", "trusted_in", "forbidden",
)  # fmt: skip


def _row(one: ServerHealth, is_master: bool) -> tuple[str, ...]:
    health = one.health
    counted = "yes" if one.counted else "no"
    faults = ", ".join(fault.code for fault in one.faults)
    if health is None:
        return (one.name, counted, *["-"] * 5, faults)
    return (
        one.name,
        counted,
        f"{health.latency * 1000:.1f} ms",
        f"{round(health.offset * 1000):+d} ms",
        f"{health.server} {health.version}",
        ("yes" if health.persistent else "no") if is_master else "-",
        "?" if health.held is None else str(health.held),
        faults,
    )
