"""A store of locks for the processes of one machine, in a file: the example of a store.

docs/contributing/write-a-store.md states the rules that it follows.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import secrets
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from redlock_django.backends.base import BaseBackend, StoreSettings
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import Listing, ReleaseOutcome, ServerHealth
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.validity import Lease, LeaseState, valid_until
from redlock_django.exceptions import ResourceLocked


@dataclass(frozen=True, kw_only=True)
class FileSettings(StoreSettings):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**StoreSettings.DEFAULTS, "DIRECTORY": ""}

    directory: Path

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> Self:
        directory = Path(section["DIRECTORY"] or "/nowhere")
        if not directory.is_dir():
            raise ValueError(f"DIRECTORY must be an existing directory, got {str(directory)!r}")
        return cls(max_ttl=StoreSettings.read(section).max_ttl, directory=directory)

    @property
    def identity(self) -> str:
        return str(self.directory)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.directory.name,)


class FileBackend(BaseBackend):
    """Locks in one file, for the processes of one machine."""

    settings_class = FileSettings
    settings: FileSettings
    is_shared = True  # other processes see the locks

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        return drive(self._acquire(resources, ttl, wait, holder), time.sleep)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        return await adrive(self._acquire(resources, ttl, wait, holder), asyncio.sleep)

    def _acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Generator[float, None, Lease]:
        """Yield the seconds to sleep before the next attempt; return the lease."""
        asked = self.clock()
        while True:
            started = self.clock()
            token = secrets.token_hex(16)
            value = f"{token} {holder}"
            try:
                fences, held, left = self._try(resources, value, started + ttl)
                if fences:
                    return Lease(
                        resources=resources,
                        token=token,
                        holder=holder,
                        ttl=ttl,
                        started=started,
                        until=valid_until(ttl, started),
                        fences=fences,
                        waited=started - asked,
                    )
            except BaseException:
                self.free(resources, value)
                raise
            if self.clock() >= asked + wait:
                raise ResourceLocked(
                    f"{held}: held by another client",
                    resource=held,
                    retry_after=left,
                    waited=started - asked,
                )
            yield min(left, 0.05)

    def _try(
        self, resources: tuple[str, ...], value: str, until: float
    ) -> tuple[tuple[int, ...], str, float]:
        """Return the fences, or none, the resource at fault and the seconds that it is held."""
        now = self.clock()
        with self.locks() as locks:
            for resource in resources:
                left = locks.get(resource, {"until": 0})["until"] - now
                if left > 0:
                    return (), resource, left
            fences = []
            for resource in resources:
                stored = locks.get(resource, {"fence": 0})["fence"]
                fence = max(stored + 1, time.time_ns() // 1000)
                locks[resource] = {"value": value, "until": until, "fence": fence}
                fences.append(fence)
        return tuple(fences), "", 0.0

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        started = self.clock()
        with self.locks() as locks:
            if started >= lease.until or not self._owned(locks, lease.resources, value_of(lease)):
                return LeaseState.LOST, lease
            for resource in lease.resources:
                locks[resource]["until"] = max(locks[resource]["until"], started + ttl)
        until = valid_until(ttl, started)
        return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)

    def release(self, lease: Lease) -> bool:
        return self.free(lease.resources, value_of(lease))

    def post_release(self, lease: Lease) -> None:
        with suppress(OSError):
            self.release(lease)

    def inspect(self) -> FileInspection:
        return FileInspection(self)

    def free(self, resources: tuple[str, ...], value: str) -> bool:
        """Free the resources that have this value; return whether all of them were held."""
        with self.locks() as locks:
            owned = self._owned(locks, resources, value)
            for resource in resources:
                if locks.get(resource, {}).get("value") == value:
                    locks[resource]["until"] = 0.0  # the fence stays
        return owned

    def _owned(self, locks: Mapping[str, Any], resources: tuple[str, ...], value: str) -> bool:
        now = self.clock()
        held = [locks.get(resource, {"value": "", "until": 0}) for resource in resources]
        return all(lock["value"] == value and lock["until"] > now for lock in held)

    @contextmanager
    def locks(self) -> Iterator[dict[str, Any]]:
        """Yield the locks of the file, by resource; write them back unless an error is raised."""
        directory = self.settings.directory
        with open(directory / "mutex", "w") as mutex:
            fcntl.flock(mutex, fcntl.LOCK_EX)
            path = directory / "locks.json"
            locks = json.loads(path.read_text()) if path.exists() else {}
            yield locks
            new = path.with_suffix(".new")
            new.write_text(json.dumps(locks))
            new.replace(path)


def value_of(lease: Lease) -> str:
    return f"{lease.token} {lease.holder}"


class FileInspection(Inspection):
    def __init__(self, backend: FileBackend) -> None:
        super().__init__(backend.alias, backend.settings.names)
        self.backend = backend

    def listing(self) -> Listing:
        now = self.backend.clock()
        with self.backend.locks() as locks:
            held = {name: lock["until"] for name, lock in locks.items() if lock["until"] > now}
        names = sorted(held, key=held.__getitem__)
        return Listing(names[: self.MAX_LISTED], len(names) > self.MAX_LISTED)

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        with self.backend.locks() as locks:
            return [
                self.holding(name, lock["value"].encode(), left)
                for name in resources
                if (lock := locks.get(name)) and (left := lock["until"] - self.backend.clock()) > 0
            ]

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        freed = [self.backend.free((resource,), value.decode()) for value in values]
        if not any(freed):
            return ReleaseOutcome.NOT_HELD, {self.servers[0]: "was not held"}
        return ReleaseOutcome.RELEASED, {self.servers[0]: "released"}

    def health(self) -> list[ServerHealth]:
        about = Health(server="files")
        return [
            ServerHealth(name=self.servers[0], health=about, reason="", faults=(), counted=True)
        ]
