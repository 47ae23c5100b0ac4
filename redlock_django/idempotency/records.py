"""The records of idempotency keys: rows of one table, in the database of the site."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import (
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.utils import timezone

from redlock_django.backends.database.tables import remedy_of
from redlock_django.exceptions import IdempotencyRefused
from redlock_django.idempotency.protocol import UNRESOLVED, RecordState, RecordStatus
from redlock_django.idempotency.refusals import UNAVAILABLE
from redlock_django.idempotency.response import StoredResponse
from redlock_django.idempotency.settings import IdempotencySettings
from redlock_django.locking.transaction_lock import RowBusy, is_limit_over, limited_wait

if TYPE_CHECKING:
    from redlock_django.idempotency.key import Claim
    from redlock_django.models import IdempotencyRecord, IdempotencyRecordQuerySet

logger = logging.getLogger("redlock_django")

DATABASE_ERRORS = (OperationalError, InterfaceError)
"""The errors that Django raises if a database is down, or busy for too long."""

_NO_RESPONSE: dict[str, Any] = {"headers": [], "body": b"", "messages": ""}
_EMPTIED = {"state": RecordState.TOMBSTONE, **_NO_RESPONSE}
TOMBSTONE_RETENTION = timedelta(days=30)
"""How long a key is known after its response is not replayed any more."""

_FEW = 100  # rows
_BRIEF = 1.0  # seconds; a transaction that is about to commit needs less


class AlreadyRecorded(Exception):
    """Another request has recorded the same key in the meantime."""


@dataclass(frozen=True)
class Record:
    """A record that was found, with its meaning for the request."""

    key_hash: str
    attempt: str
    status: RecordStatus
    response: StoredResponse | None = None


class RecordStore:
    """Rows of `IdempotencyRecord` in one database. Call it from threads, not from a running loop.

    Every method that a request calls raises IdempotencyRefused if the database fails.
    """

    def __init__(self, alias: str, *, retention: timedelta) -> None:
        self.alias = alias
        self._retention = retention

    def rows(self) -> IdempotencyRecordQuerySet:
        """Return all rows of this database."""
        # This module may be imported before the apps are ready, and a model may not.
        from redlock_django.models import IdempotencyRecord

        return IdempotencyRecord.objects.using(self.alias)

    def _rows_of(self, key_hash: str, *states: RecordState) -> IdempotencyRecordQuerySet:
        rows = self.rows().filter(key_hash=key_hash)
        return rows.filter(state__in=states) if states else rows

    @contextmanager
    def _limited_wait(self, seconds: float) -> Iterator[None]:
        try:
            with limited_wait(self.alias, seconds):
                yield
        except RowBusy:
            raise AlreadyRecorded from None

    def find(self, claim: Claim) -> Record | None:
        """Return the record of the claim's key, or None."""
        with _database_errors(self.alias):
            row = self._found([each.key_hash for each in claim.hashes])
        if row is None:
            return None
        response = response_of(row) if row.state == RecordState.COMPLETED else None
        status = RecordStatus(
            RecordState(row.state),
            same=(row.key_hash, row.fingerprint) in claim.hashes,
            expired=row.expires_at is not None and row.expires_at <= timezone.now(),
        )
        return Record(row.key_hash, row.attempt, status, response)

    def _found(self, hashes: list[str]) -> IdempotencyRecord | None:
        from redlock_django.models import IdempotencyRecord

        connection = connections[self.alias]
        with connection.cursor() as cursor:
            cursor.execute(_select(self.alias, connection.vendor, len(hashes)), hashes)
            row = cursor.fetchone()
        if row is None:
            return None
        found = IdempotencyRecord()
        for name, value in zip(_FOUND, row, strict=True):
            column: Any = IdempotencyRecord._meta.get_field(name).cached_col  # type: ignore[union-attr]
            for convert in (
                *connection.ops.get_db_converters(column),
                *column.get_db_converters(connection),
            ):
                value = convert(value, column, connection)
            setattr(found, name, value)
        return found

    def begin(self, claim: Claim, *, savepoint: bool = False) -> None:
        """Record that the view runs; raise AlreadyRecorded if the key has a record.

        A record that another transaction is about to commit counts after a limited wait. With
        `savepoint`, an open transaction can be used after AlreadyRecorded; otherwise it must end.
        """
        wait = max(claim.wait or 0, _BRIEF)
        # PostgreSQL's statement has the limit of its wait, and SQLite its option `timeout`.
        is_mysql = connections[self.alias].vendor == "mysql"
        inside = transaction.atomic(using=self.alias, savepoint=savepoint)
        with _database_errors(self.alias), inside:
            try:
                with self._limited_wait(wait) if is_mysql else nullcontext():
                    _insert(
                        self.alias,
                        wait,
                        key_hash=claim.key_hash,
                        fingerprint=claim.hashes[0].fingerprint,
                        attempt=claim.attempt,
                        user=claim.user[:255],
                        method=claim.method,
                        path=claim.path[:255],
                    )
            except IntegrityError:
                raise AlreadyRecorded from None
            except OperationalError as error:
                if is_limit_over(error):
                    raise AlreadyRecorded from None
                raise

    def complete(self, claim: Claim, status: int, response: StoredResponse | None) -> bool:
        """Record that the view completed, with its response or without (None).

        Return False if the record belongs to another attempt, or is gone.
        """
        now = timezone.now()
        with _database_errors(self.alias):
            return _update(
                self.alias,
                claim,
                state=RecordState.TOMBSTONE if response is None else RecordState.COMPLETED,
                status=status,
                completed_at=now,
                expires_at=now + claim.retention,
                **_columns_of(response),
            )

    def delete(self, claim: Claim) -> None:
        """Delete the record of this attempt, unless it is completed."""
        with _database_errors(self.alias):
            rows = self._rows_of(claim.key_hash, *UNRESOLVED)
            rows.filter(attempt=claim.attempt).delete()

    def mark_uncertain(self, key_hash: str, attempt: str) -> None:
        """Record that the outcome is uncertain, if the state is still "running".

        Raises AlreadyRecorded if another transaction is about to record the outcome.
        """
        with _database_errors(self.alias), self._limited_wait(_BRIEF):
            rows = self._rows_of(key_hash, RecordState.RUNNING)
            rows.filter(attempt=attempt).update(state=RecordState.UNCERTAIN)

    def resolve(self, key_hash: str, attempt: str, *, applied: bool) -> bool:
        """Record whether an uncertain attempt took effect; return False if it is not uncertain.

        `applied` leaves a tombstone, so that the request is never run again; otherwise the key
        becomes unused.
        """
        uncertain = self._rows_of(key_hash, RecordState.UNCERTAIN).filter(attempt=attempt)
        now = timezone.now()
        expires = now + self._retention
        with _database_errors(self.alias):
            if not applied:
                return bool(uncertain.delete()[0])
            changes = {"state": RecordState.TOMBSTONE, "completed_at": now, "expires_at": expires}
            return bool(uncertain.update(**changes))

    def unresolved(self, prefix: str = "") -> list[IdempotencyRecord]:
        """Return the records of unresolved requests whose key hash has this prefix, oldest first.

        A request is running, interrupted or uncertain.
        """
        # An unresolved record has no expires_at, and that column has an index.
        rows = self.rows().filter(expires_at__isnull=True, state__in=UNRESOLVED)
        with _database_errors(self.alias):
            rows = rows.filter(key_hash__startswith=prefix).defer("headers", "body", "messages")
            return list(rows.order_by("created_at", "pk"))

    def forget_expired_responses(self) -> None:
        """Delete some of the responses that are not replayed any more.

        Never raises: it is called after a request that was answered well.
        """
        now = timezone.now()
        expired = self.rows().filter(state=RecordState.COMPLETED, expires_at__lte=now)
        unable = suppress(AlreadyRecorded, IdempotencyRefused)
        with unable, _database_errors(self.alias), self._limited_wait(_BRIEF):
            pks = list(expired.order_by("expires_at").values_list("pk", flat=True)[:_FEW])
            if pks:
                self.rows().filter(pk__in=pks).update(**_EMPTIED)

    def purgeable(self) -> list[tuple[str, IdempotencyRecordQuerySet, str]]:
        """Return what to do with which records, by the column of their age.

        A record is "deleted" `TOMBSTONE_RETENTION` after its retention is over; until then it is
        only "emptied". A request without an outcome counts as completed at its beginning.
        """
        now = timezone.now()
        rows, gone = self.rows(), now - TOMBSTONE_RETENTION
        unresolved = rows.filter(state__in=UNRESOLVED, expires_at__isnull=True)
        completed = rows.filter(state=RecordState.COMPLETED, expires_at__lte=now)
        return [
            ("deleted", rows.filter(expires_at__lte=gone), "expires_at"),
            ("deleted", unresolved.filter(created_at__lte=gone - self._retention), "created_at"),
            ("emptied", completed.filter(expires_at__gt=gone), "expires_at"),
        ]

    def purge(self, batch: int = 1000) -> Iterator[tuple[str, int]]:
        """Delete and empty the records that `purgeable` returns.

        Yields "deleted" or "emptied" and the number of rows that a statement changed, at most
        `batch`. Each statement is a transaction of its own, unless there is an open one.
        """
        for result, rows, column in self.purgeable():
            for pks in _batches(rows, column, batch):
                found = self.rows().filter(pk__in=pks)
                changed = found.delete()[0] if result == "deleted" else found.update(**_EMPTIED)
                yield result, changed


def store_of(settings: IdempotencySettings) -> RecordStore:
    """Return the store that the settings name."""
    return RecordStore(settings.database, retention=timedelta(seconds=settings.retention))


# The statements of every request are written here, because Django compiles one in more time than a
# database executes it. `vendor` is an argument because a test may replace a database.

_FOUND = (
    *("key_hash", "fingerprint", "attempt", "state", "expires_at"),
    *("status", "headers", "body", "messages"),
)
_COMPLETED = (
    *("state", "status", "completed_at", "expires_at"),
    *("headers", "body", "messages"),
)


@cache
def _select(alias: str, vendor: str, hashes: int) -> str:
    """Return the statement that finds the record of so many hashes; their values are its own."""
    from redlock_django.models import IdempotencyRecord

    quote = connections[alias].ops.quote_name
    columns, values = ", ".join(map(quote, _FOUND)), ", ".join(["%s"] * hashes)
    table = quote(IdempotencyRecord._meta.db_table)
    where = f"WHERE key_hash IN ({values}) ORDER BY {quote('id')}"
    return f"SELECT {columns} FROM {table} {where}"


_LIMITED = (
    "WITH waiting AS (SELECT current_setting('lock_timeout') AS before,"
    " set_config('lock_timeout', %s, true)),"
    " inserted AS ({insert} SELECT {values} FROM waiting RETURNING 1)"
    " SELECT set_config('lock_timeout', before, true) FROM waiting, inserted"
)
"""An INSERT of PostgreSQL with a limit of its wait: one round trip in place of three."""


class _Statements(NamedTuple):
    fields: Any
    """The fields that are inserted, in the order of their values."""
    insert: str
    complete: str


@cache
def _statements(alias: str, vendor: str) -> _Statements:
    """Return the statements that insert and complete a record."""
    from redlock_django.models import IdempotencyRecord

    quote = connections[alias].ops.quote_name
    fields: Any = [f for f in IdempotencyRecord._meta.concrete_fields if not f.primary_key]
    columns = ", ".join(quote(field.column) for field in fields)
    table = quote(IdempotencyRecord._meta.db_table)
    insert = f"INSERT INTO {table} ({columns})"
    values = ", ".join(_placeholder(field.name, vendor) for field in fields)
    limited = _LIMITED if vendor == "postgresql" else "{insert} VALUES ({values})"
    insert = limited.format(insert=insert, values=values)
    changes = ", ".join(f"{quote(name)} = {_placeholder(name, vendor)}" for name in _COMPLETED)
    where = "WHERE key_hash = %s AND attempt = %s AND state IN (%s, %s)"
    return _Statements(fields, insert, f"UPDATE {table} SET {changes} {where}")


def _placeholder(name: str, vendor: str) -> str:
    # MySQL warns of bytes that are not UTF-8; Django sends the same prefix.
    return "_binary %s" if name == "body" and vendor == "mysql" else "%s"


def _execute(alias: str, statement: str, parameters: Sequence[Any]) -> int:
    connection = connections[alias]
    with transaction.mark_for_rollback_on_error(using=alias), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        changed: int = cursor.rowcount
    return changed


def _prepared(alias: str, fields: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    connection = connections[alias]
    pairs = zip(fields, values, strict=True)
    return [field.get_db_prep_save(value, connection) for field, value in pairs]


def _insert(alias: str, wait: float, **columns: str) -> None:
    """Insert a row; on PostgreSQL, wait for another transaction for so many seconds."""
    from redlock_django.models import IdempotencyRecord

    row, vendor = IdempotencyRecord(**columns), connections[alias].vendor
    fields, statement, _ = _statements(alias, vendor)
    limit = [f"{round(1000 * wait)}ms"] if vendor == "postgresql" else []
    values = _prepared(alias, fields, (getattr(row, field.attname) for field in fields))
    _execute(alias, statement, [*limit, *values])


def _update(alias: str, claim: Claim, **columns: Any) -> bool:
    from redlock_django.models import IdempotencyRecord

    fields = [IdempotencyRecord._meta.get_field(name) for name in _COMPLETED]
    values = [columns[name] for name in _COMPLETED]
    statement = _statements(alias, connections[alias].vendor).complete
    where = claim.key_hash, claim.attempt, *UNRESOLVED
    return _execute(alias, statement, [*_prepared(alias, fields, values), *where]) == 1


def _columns_of(response: StoredResponse | None) -> dict[str, Any]:
    if response is None:
        return _NO_RESPONSE
    # JSON inside of JSON, because PostgreSQL stores no NUL in it, only its escape sequence.
    headers = json.dumps(response.headers)
    return {"headers": headers, "body": response.body, "messages": response.messages}


def response_of(row: IdempotencyRecord) -> StoredResponse:
    """Return the response in a completed record."""
    headers = tuple((name, value) for name, value in json.loads(row.headers))
    return StoredResponse(row.status or 200, headers, bytes(row.body), row.messages)


def _batches(rows: IdempotencyRecordQuerySet, column: str, size: int) -> Iterator[list[int]]:
    """Yield the primary keys of rows, which the caller changes, in the order of a column."""
    rows = rows.order_by(column)
    page = rows
    while found := list(page.values_list("pk", column)[:size]):
        yield [pk for pk, _ in found]
        # The next batch begins here, and does not search the rows that were changed before it.
        page = rows.filter(**{f"{column}__gte": found[-1][1]})


@contextmanager
def _database_errors(database: str) -> Iterator[None]:
    """Raise IdempotencyRefused for an error of the database, also if its tables are missing."""
    try:
        yield
    except (*DATABASE_ERRORS, ProgrammingError) as error:
        if remedy := remedy_of(error, database):
            logger.error("idempotency: %s", remedy)
            unavailable = IdempotencyRefused(UNAVAILABLE)
            unavailable.remedy = remedy
            raise unavailable from error
        if isinstance(error, ProgrammingError):
            raise
        # The message of the error may contain values of a row, so it is not logged.
        logger.error("idempotency: the database failed: %s", type(error).__name__)
        raise IdempotencyRefused(UNAVAILABLE) from error
