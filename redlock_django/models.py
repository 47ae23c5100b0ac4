"""The models: held locks in the admin, idempotency records, and the rows of the database store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.utils import timezone

from redlock_django.backends.database.dialects import LOCKS, SERVERS, WAITERS, text
from redlock_django.engine.inspection.printable import printable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    CharField = models.CharField[str, str]
else:
    CharField = models.CharField


class ResourceField(CharField):
    """The name of a resource, of which every character counts.

    Collations of MySQL take "a", "A" and "a " for equal, so the column is binary there.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return the type of the column."""
        if connection.vendor == "mysql":
            return f"varbinary({4 * (self.max_length or 0)})"
        return super().db_type(connection)

    def from_db_value(self, value: str | bytes, *_: Any) -> str:
        """Return a value of the database as a string."""
        return text(value)


class NoTableManager(models.Manager["HeldLock"]):
    """A manager that queries no table, for commands that read every model, such as `dumpdata`."""

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        """Return an empty queryset."""
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that is held now, for the admin: permissions, the page, and entries of its log.

    It has no table: `operate.inspection.held_locks` asks the servers. `id` consists of fingerprint
    and resource.
    """

    id = models.CharField("ID", max_length=600, primary_key=True)
    resource = models.CharField("resource", max_length=512)

    objects = NoTableManager()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_heldlock", "Can release a held lock by force"),)
        verbose_name = "held lock"
        verbose_name_plural = "held locks"

    def __str__(self) -> str:
        return printable(self.resource)


class IdempotencyRecordQuerySet(models.QuerySet["IdempotencyRecord"]):
    """Records by state and age."""

    def uncertain(self) -> IdempotencyRecordQuerySet:
        """Return the records of requests that were interrupted and may have had an effect.

        A record in the state "running" is uncertain, too, when the lock of its key
        (`idempotency.key.lock_name`) is not held any more. Its state changes when the key is used
        again.
        """
        return self.filter(state=IdempotencyRecord.State.UNCERTAIN)

    def expired(self) -> IdempotencyRecordQuerySet:
        """Return the records whose responses are not replayed any more."""
        return self.filter(expires_at__lte=timezone.now())


class IdempotencyRecord(models.Model):
    """An idempotency key that was used, and the outcome of its request.

    It stores neither the key nor the request, only HMACs of the key and of the request fingerprint
    with SECRET_KEY. If a record is completed in the transaction of its view, other transactions
    never see it in the state "running".
    """

    class State(models.TextChoices):
        """The outcome of a request."""

        RUNNING = "running", "running or interrupted"
        COMPLETED = "completed", "completed"
        TOMBSTONE = "tombstone", "tombstone"
        UNCERTAIN = "uncertain", "uncertain"

    key_hash: models.CharField[str, str] = models.CharField("key hash", max_length=64, unique=True)
    fingerprint: models.CharField[str, str] = models.CharField("fingerprint", max_length=64)
    state: models.CharField[str, str] = models.CharField(
        "state", max_length=10, choices=State, default=State.RUNNING
    )
    attempt: models.CharField[str, str] = models.CharField("attempt", max_length=32)
    user: models.CharField[str, str] = models.CharField("user", max_length=255, blank=True)
    method: models.CharField[str, str] = models.CharField("method", max_length=10)
    path: models.CharField[str, str] = models.CharField("path", max_length=255)
    created_at = models.DateTimeField("created at", default=timezone.now)
    completed_at = models.DateTimeField("completed at", null=True)
    expires_at = models.DateTimeField("expires at", null=True, db_index=True)
    status = models.PositiveSmallIntegerField("status", null=True)
    headers = models.JSONField("headers", default=list)
    body = models.BinaryField("body", default=b"")
    messages: models.TextField[str, str] = models.TextField("messages", default="")

    objects: ClassVar[models.Manager[IdempotencyRecord]] = IdempotencyRecordQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        permissions = (("resolve_idempotencyrecord", "Can resolve an uncertain request"),)
        indexes = (
            # For the records to empty, and for the requests to resolve.
            models.Index(fields=("state", "expires_at"), name="redlock_state_expires"),
        )
        verbose_name = "idempotency record"
        verbose_name_plural = "idempotency records"

    def __str__(self) -> str:
        return f"{self.method} {self.path} ({self.key_hash[:8]})"


class LockRow(models.Model):
    """The lock of one resource in `DatabaseBackend`, which uses the table without this model.

    A row stays when its lock ends, for the next fence. `expires_at` is in µs since 1970 by the
    clock of the database; without an index on it, PostgreSQL updates a row in its page (HOT).
    """

    resource = ResourceField("resource", max_length=512, primary_key=True)
    token_hash = models.CharField(max_length=32)
    holder = models.TextField("holder")
    fence = models.BigIntegerField("fence")
    expires_at = models.BigIntegerField()

    class Meta:
        db_table = LOCKS
        default_permissions = ()

    def __str__(self) -> str:
        return self.resource


class WaiterRow(models.Model):
    """A waiter in the queue of one resource in `DatabaseBackend`; times as in `LockRow`."""

    name = models.CharField(max_length=32, db_index=True)
    resource = ResourceField("resource", max_length=512)
    arrived_at = models.BigIntegerField()
    alive_until = models.BigIntegerField()

    class Meta:
        db_table = WAITERS
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=("resource", "name"), name="redlock_waiter_once"),
        )

    def __str__(self) -> str:
        return f"{self.name} waits for {self.resource}"


class ServerRow(models.Model):
    """The identity of the database server of `DatabaseBackend`, in one row.

    If it changes, locks are not granted before `ready_at`; times as in `LockRow`.
    """

    id = models.SmallIntegerField(primary_key=True)
    identity = models.CharField(max_length=100)
    ready_at = models.BigIntegerField()

    class Meta:
        db_table = SERVERS
        default_permissions = ()

    def __str__(self) -> str:
        return self.identity
