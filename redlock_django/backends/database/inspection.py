"""Held locks, forced release and health of the database store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.dialects import LOCKS, SECOND, WAITERS, text
from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.backends.database.sql import release
from redlock_django.backends.database.trust import ready_in
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.page import MAX_LISTED
from redlock_django.backends.inspection.results import Listing, ReleaseOutcome, ServerHealth
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Holding, Sighting, merge
from redlock_django.engine.validity import with_drift
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.clock import clock, wall_ns

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

T = TypeVar("T")
# If the clock was set back, a lock that was released before ends in the future.
_HELD = "token_hash <> '' AND expires_at > {now}"


class DatabaseInspection(Inspection):
    """Asks the database about locks, on connections that it closes at the end."""

    def __init__(self, using: str, settings: DatabaseSettings, connections: Connections) -> None:
        super().__init__(using, [settings.database])
        self._dialect = settings.dialect
        self._forgotten = with_drift(settings.longest_ttl)
        self._connections = connections
        self._silent: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connections.close()

    @property
    def silent(self) -> Mapping[str, str]:
        return self._silent

    def listing(
        self, *, search: str = "", scan: bool = False, last_first: bool = False, most: int
    ) -> Listing:
        where, values = (
            self._sql(f"FROM {LOCKS} WHERE {_HELD}"),
            list[Any](),
        )
        if search:
            where, most = f"{where} AND {self._dialect.contains}", MAX_LISTED
            values.append(search)
        order = "DESC" if last_first else "ASC"
        statement = self._sql(f"SELECT resource, expires_at - {{now}} {where}")
        statement += f" ORDER BY expires_at {order}, resource {order} LIMIT {most}"

        def read(cursor: CursorWrapper) -> Listing:
            cursor.execute(statement, values)
            left = {text(name): left / SECOND for name, left in cursor.fetchall()}
            cursor.execute(f"SELECT count(*) {where}", values)
            (about,) = cursor.fetchone()
            stopped = most if search and about > most else None
            return Listing(left=left, about=about, stopped_at=stopped)

        return self._ask(read) or Listing(left={}, about=0, stopped_at=None)

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        if not resources:
            return []
        marks = ", ".join(["%s"] * len(resources))
        statement = self._sql(
            "SELECT resource, token_hash, holder, expires_at - {now}, "
            f"(SELECT count(*) FROM {WAITERS} AS waiter WHERE waiter.resource = {LOCKS}.resource "
            f"AND waiter.alive_until > {{now}}) FROM {LOCKS} "
            f"WHERE resource IN ({marks}) AND {_HELD}"
        )

        def read(cursor: CursorWrapper) -> list[Any]:
            cursor.execute(statement, list(resources))
            return [(text(name), *rest) for name, *rest in cursor.fetchall()]

        held = {row[0]: row for row in self._ask(read) or []}
        return [self._holding(*held[name]) for name in dict.fromkeys(resources) if name in held]

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        hashes = [value.split(b" ", 1)[0].decode() for value in values]

        def free(cursor: CursorWrapper) -> bool:
            return any(release(cursor, [resource], one) for one in hashes)

        freed = self._ask(free)
        if freed is None:
            return ReleaseOutcome.NO_QUORUM, dict(self.silent)
        word = "released" if freed else "was not held"
        outcome = ReleaseOutcome.RELEASED if freed else ReleaseOutcome.NOT_HELD
        return outcome, {self.servers[0]: word}

    def health(self) -> list[ServerHealth]:
        statement = self._sql(f"SELECT {{now}}, (SELECT count(*) FROM {LOCKS} WHERE {_HELD})")

        def read(cursor: CursorWrapper) -> Health:
            asked = clock()
            cursor.execute(statement)
            now, held = cursor.fetchone()
            took = clock() - asked
            version = ".".join(map(str, cursor.db.get_database_version()))
            return Health(
                server=cursor.db.display_name,
                latency=took,
                offset=now / SECOND - wall_ns() / 1e9 + took / 2,
                version=version,
                persistent=True,
                held=held,
                ready_in=ready_in(cursor, self._forgotten),
            )

        (name,) = self.servers
        report = self._ask(read)
        reason = self._silent.get(name, "")
        faults: tuple[tuple[str, str], ...] = ()
        if report is None:
            faults = (("unreachable", reason),)
        elif report.ready_in:
            why = f"was restarted, failed over or restored: trusted in {report.ready_in:.0f} s"
            faults = (("untrusted", why),)
        return [
            ServerHealth(name=name, health=report, reason=reason, faults=faults, counted=not faults)
        ]

    def _sql(self, statement: str) -> str:
        return self._dialect.sql(statement)

    def _ask(self, work: Callable[[CursorWrapper], T]) -> T | None:
        """Return the answer of the database, or None; it is not asked again if it fails."""
        if not self._silent:
            with suppress(StoreUnavailable):
                return self._asked(work)
        return None

    def _asked(self, work: Callable[[CursorWrapper], T]) -> T:
        try:
            return self._connections.run(work)
        except StoreUnavailable as error:
            self._silent[self.servers[0]] = next(iter(error.tally.values()), str(error))
            raise

    def _holding(
        self, resource: str, token_hash: str, holder: str, left: int, waiters: int
    ) -> Holding:
        value = f"{token_hash} {holder}".encode()
        seen = [Sighting(self.servers[0], value, left / SECOND)]
        return merge(resource, seen, self.servers, (), waiters)
