"""Held locks, forced release and health of the database store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.dialects import LOCKS, SECOND, WAITERS, marks, text
from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.backends.database.sql import release
from redlock_django.backends.database.trust import ready_in
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import Listing, ReleaseOutcome, ServerHealth
from redlock_django.engine.inspection.health import Health
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.validity import with_drift
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.clock import clock, wall_ns

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

T = TypeVar("T")


class DatabaseInspection(Inspection):
    """Asks the database about locks, on connections that it closes at the end."""

    def __init__(self, using: str, settings: DatabaseSettings, connections: Connections) -> None:
        super().__init__(using, [settings.database])
        self._dialect = settings.dialect
        # If the clock was set back, a lock that was released before ends in the future.
        self._held = f"FROM {LOCKS} WHERE token_hash <> '' AND expires_at > {self._dialect.now}"
        self._forgotten = with_drift(settings.longest_ttl)
        self._connections = connections

    def __exit__(self, *error: object) -> None:
        self._connections.close()

    def listing(self) -> Listing:
        statement = (
            f"SELECT resource {self._held} ORDER BY expires_at, resource "
            f"LIMIT {self.MAX_LISTED + 1}"
        )

        def read(cursor: CursorWrapper) -> list[str]:
            cursor.execute(statement)
            return [text(name) for (name,) in cursor.fetchall()]

        names = self._ask(read) or []
        return Listing(names[: self.MAX_LISTED], len(names) > self.MAX_LISTED)

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        if not resources:
            return []
        now = self._dialect.now
        statement = f"""
SELECT resource, token_hash, holder, expires_at - {now},
    (SELECT count(*) FROM {WAITERS} AS waiter
     WHERE waiter.resource = {self._dialect.name} AND waiter.alive_until > {now})
{self._held} AND resource IN ({marks(len(resources))})"""

        def read(cursor: CursorWrapper) -> list[Any]:
            cursor.execute(statement, list(resources))
            return [(text(name), *rest) for name, *rest in cursor.fetchall()]

        held = {
            name: self.holding(name, f"{token_hash} {holder}".encode(), left / SECOND, waiters)
            for name, token_hash, holder, left, waiters in self._ask(read) or []
        }
        return [held[name] for name in dict.fromkeys(resources) if name in held]

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        hashes = [value.split(b" ", 1)[0].decode() for value in values]

        def free(cursor: CursorWrapper) -> bool:
            return any(release(cursor, [resource], one) for one in hashes)

        return self._freed(bool(self._ask(free)))

    def health(self) -> list[ServerHealth]:
        statement = f"SELECT {self._dialect.now}, (SELECT count(*) {self._held})"

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
        if report is not None and report.ready_in:
            reason = f"was restarted, failed over or restored: trusted in {report.ready_in:.0f} s"
        return [ServerHealth.of(name, report, reason)]

    def _ask(self, work: Callable[[CursorWrapper], T]) -> T | None:
        """Return the answer of the database, or None; it is not asked again if it fails."""
        if not self._silent:
            try:
                return self._connections.run(work)
            except StoreUnavailable as error:
                self._silent[self.servers[0]] = next(iter(error.tally.values()), str(error))
        return None
