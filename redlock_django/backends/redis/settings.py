"""The settings of the masters of an alias, of which a majority decides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from redlock_django.backends.base import Section, StoreSettings
from redlock_django.backends.redis.masters import read_masters, read_sentinels
from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    choice,
    mapping,
    seconds,
    several,
    string,
)
from redlock_django.engine.protocol.deployment import Deployment, identity
from redlock_django.wire.servers.address import Address, check_options

FAILOVER = "failover"
"""The only PROFILE: one server, whose place a replica may take at any time."""

HANDOVER = 15.0
"""Seconds for which a former primary may go on beside the new one, and grant and extend locks.

A Sentinel demotes it some 8 s after it has promoted the replica (four times its period of 2 s)."""

TOLERABLE = ("eviction", "replica")
"""The server faults that TOLERATE turns from a refusal into a warning."""


@dataclass(frozen=True, kw_only=True)
class RedlockSettings(StoreSettings):
    """The settings of N masters."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **StoreSettings.DEFAULTS,
        "MASTERS": (),
        "PROFILE": None,
        "SENTINELS": (),
        "SENTINEL_OPTIONS": {},
        "OPTIONS": {},
        "MASTER_TIMEOUT": 0.25,
        "CONNECT_TIMEOUT": 1.0,
        "MAX_CLOCK_SKEW": 0.5,
        "RESTART_DELAY": "auto",
        "KEY_PREFIX": "redlock",
        "FENCE_TTL": 600,
        "TOLERATE": (),
    }
    default_names: ClassVar[tuple[str, ...]] = ()
    """The names of the masters if MASTERS names none."""

    addresses: tuple[Address, ...]
    deployment: Deployment
    """The numbers that all clients of these masters must share."""
    master_timeout: float
    connect_timeout: float

    @classmethod
    def read(cls, section: Section) -> Self:
        sentinel_options = _options(section, "SENTINEL_OPTIONS")
        sentinels = read_sentinels(several(section, "SENTINELS"), sentinel_options)
        if sentinel_options and not sentinels:
            raise ValueError(
                "SENTINEL_OPTIONS is set, and SENTINELS is not, so no Sentinel would be asked. "
                "List the URLs of the Sentinels in SENTINELS, or remove SENTINEL_OPTIONS"
            )
        options = _options(section, "OPTIONS")
        addresses = read_masters(section["MASTERS"], options, sentinels)
        names = tuple(address.name for address in addresses) or cls.default_names
        if not names:
            raise ValueError(
                "MASTERS must name at least one master: ['redis://10.0.0.1:6379/0', ...]"
            )
        failover = _is_failover(section, len(addresses))
        max_ttl = seconds(section, "MAX_TTL", least=SHORTEST_TTL)
        skew = seconds(section, "MAX_CLOCK_SKEW")
        # For how long a lock that a master forgot may still be held: clocks run at rates up
        # to 1 % apart and may step.
        forgotten = 1.02 * max_ttl + 5 * skew
        deployment = Deployment(
            names=names,
            prefix=_prefix(section),
            max_ttl=max_ttl,
            max_clock_skew=skew,
            restart_delay=_restart_delay(
                section,
                forgotten + HANDOVER if failover else forgotten,
                failover or len(addresses) >= 3,
            ),
            fence_ttl=_fence_ttl(section, forgotten),
            members=identity(address.store for address in addresses),
            failover=failover,
        )
        return cls(
            max_ttl=max_ttl,
            addresses=addresses,
            deployment=deployment,
            master_timeout=seconds(section, "MASTER_TIMEOUT", most=LONGEST_WAIT),
            connect_timeout=seconds(section, "CONNECT_TIMEOUT", most=LONGEST_WAIT),
            tolerate=_tolerate(section),
        )

    def check_ttl(self, ttl: float, name: str) -> None:
        if self.master_timeout * 2 < ttl <= self.max_ttl:
            return
        super().check_ttl(ttl, name)
        raise ValueError(
            f"{name} ({ttl:g} s) must be more than twice MASTER_TIMEOUT ({self.master_timeout:g} s)"
        )

    @property
    def identity(self) -> str:
        return self.deployment.members

    @property
    def names(self) -> tuple[str, ...]:
        return self.deployment.names


def _options(section: Section, key: str) -> Mapping[str, Any]:
    """Return the options of connections in a key."""
    options = mapping(section, key)
    try:
        check_options(options)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    return options


def _is_failover(section: Section, masters: int) -> bool:
    """Return whether a replica may take the place of the server, as PROFILE says."""
    profile = choice(section["PROFILE"], "PROFILE", (None, FAILOVER))
    if profile is None:
        if section["SENTINELS"]:
            raise ValueError(
                "SENTINELS is set, and PROFILE is not: Sentinel makes a replica the primary, which "
                f"may have forgotten locks. Set PROFILE to {FAILOVER!r}"
            )
        return False
    named = f"PROFILE is {FAILOVER!r}"
    if masters != 1:
        raise ValueError(
            f"{named}, which is for one server whose replica may take over, and MASTERS names "
            f"{masters} masters. Name one server, or remove PROFILE, which independent masters do "
            "not need"
        )
    if section["RESTART_DELAY"] == 0:
        raise ValueError(
            f"{named} and RESTART_DELAY is 0, so a promoted replica would grant locks that it has "
            "not received. Remove RESTART_DELAY"
        )
    if "replica" in _tolerate(section):
        raise ValueError(
            f"{named} and TOLERATE contains 'replica', so a replica would grant locks beside its "
            "primary. Remove 'replica' from TOLERATE"
        )
    return True


def _restart_delay(section: Section, forgotten: float, waits: bool) -> float:
    if section["RESTART_DELAY"] == "auto":
        # 50 ms more for the way to the master.
        return forgotten + 0.05 if waits else 0.0
    if isinstance(section["RESTART_DELAY"], str):
        raise ValueError("RESTART_DELAY must be 'auto' or a number of seconds (0 = off)")
    delay = seconds(section, "RESTART_DELAY", least=0)
    if 0 < delay < forgotten - 1e-6:  # as exact as floats are
        more = f" + {HANDOVER:g} s" if section["PROFILE"] else ""
        raise ValueError(
            "RESTART_DELAY must be 'auto', 0 (off) or at least 1.02 x MAX_TTL + "
            f"5 x MAX_CLOCK_SKEW{more} = {forgotten:g} s, got {delay:g}: after a shorter delay a "
            "master that forgot a lock would grant it again while it is held"
        )
    return delay


def _fence_ttl(section: Section, forgotten: float) -> float:
    fence_ttl = seconds(section, "FENCE_TTL")
    if fence_ttl < forgotten:
        raise ValueError(
            "FENCE_TTL must be at least 1.02 x MAX_TTL + 5 x MAX_CLOCK_SKEW = "
            f"{forgotten:g} s, got {fence_ttl:g}"
        )
    return fence_ttl


def _tolerate(section: Section) -> frozenset[str]:
    faults = several(section, "TOLERATE")
    return frozenset(choice(fault, "an entry of TOLERATE", TOLERABLE) for fault in faults)


def _prefix(section: Section) -> str:
    prefix = string(section, "KEY_PREFIX")
    if not prefix.isprintable() or re.search(r"[\s{}*?\[\]\\^]", prefix):
        raise ValueError(
            "KEY_PREFIX must contain no space, control character, brace or glob character, "
            f"got {prefix!r}"
        )
    return prefix
