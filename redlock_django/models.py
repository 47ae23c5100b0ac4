"""What the database knows: who may free locks and who did, which requests were answered and how."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import quote, unquote

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from redlock_django.engine.holders import Holding
from redlock_django.locking.names import printable


def moment(seconds: float | None) -> datetime | None:
    """Give a time in seconds since 1970 as Django stores times; None where it is none."""
    try:
        moment = None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None  # whoever can write to a master can write any number there
    return timezone.make_naive(moment) if moment and not settings.USE_TZ else moment


class NoRows(models.Manager["HeldLock"]):
    """Asks no database: `dumpdata` and others look at every model, with a table or without."""

    def get_queryset(self) -> models.QuerySet[HeldLock]:
        """Give nothing; the admin has a queryset of its own."""
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that is held now. No table: the masters are asked, see `inspection.held_locks`.

    `id` is its fingerprint, its alias and its resource; `ttl` in seconds, None for ever.
    `holding` is all that the masters said of it.
    """

    id = models.CharField("ID", max_length=2000, primary_key=True)
    using = models.CharField(_("alias"), max_length=100)
    resource = models.CharField(_("resource"), max_length=512)
    fingerprint = models.CharField(_("lock"), max_length=8)
    state = models.CharField(_("state"), max_length=20)
    since = models.DateTimeField(_("held since"), null=True)
    ttl = models.FloatField(_("TTL left"), null=True)

    objects = NoRows()
    holding: Holding

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_heldlock", "Can release a lock that somebody holds"),)
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")

    def __str__(self) -> str:
        return printable(self.resource)

    @classmethod
    def of(cls, using: str, holding: Holding) -> HeldLock:
        """Make what is shown of a lock from what the masters of an alias said of it."""
        lock = cls(
            id=f"{holding.fingerprint}:{quote(using, safe='')}:{holding.resource}",
            using=using,
            resource=holding.resource,
            fingerprint=holding.fingerprint,
            state=holding.state.value,
            since=moment(holding.since),
            ttl=holding.ttl,
        )
        lock.holding = holding
        return lock

    @staticmethod
    def parts(lock_id: str) -> tuple[str, str, str]:
        """Give fingerprint, alias and resource of an id; ValueError for what is none."""
        fingerprint, using, resource = lock_id.split(":", 2)
        return fingerprint, unquote(using), resource


class ForcedRelease(models.Model):
    """One time that somebody freed a lock that was another's."""

    at = models.DateTimeField(_("time"), auto_now_add=True, db_index=True)
    resource = models.CharField(_("resource"), max_length=512, db_index=True)
    using = models.CharField(_("alias"), max_length=100)
    fingerprint = models.CharField(_("lock"), max_length=8)
    holder = models.JSONField(_("holder"), default=dict)
    by = models.CharField(_("by"), max_length=200)
    outcome = models.CharField(_("outcome"), max_length=20)
    masters = models.JSONField(_("masters"), default=dict)

    class Meta:
        default_permissions = ("view",)
        ordering = ("-at", "-pk")
        verbose_name = _("forced release")
        verbose_name_plural = _("forced releases")

    def __str__(self) -> str:
        return f"{self.resource} ({self.fingerprint})"


class IdempotencyRecordQuerySet(models.QuerySet["IdempotencyRecord"]):
    """Records by what may be done with them."""

    def uncertain(self) -> IdempotencyRecordQuerySet:
        """Give those of which nobody knows whether their request had any effect.

        A record that says "running" belongs here too once nobody holds the lock of its key any
        more (`idempotency.key.lock_name`); that is written down when the key is used again.
        """
        return self.filter(state=IdempotencyRecord.State.UNCERTAIN)

    def expired(self) -> IdempotencyRecordQuerySet:
        """Give those whose response is not replayed any more."""
        return self.filter(expires_at__lte=timezone.now())


IdempotencyRecordManager = models.Manager.from_queryset(IdempotencyRecordQuerySet)


class IdempotencyRecord(models.Model):
    """One idempotency key that was used, and what became of its request.

    The key itself is not here, only an HMAC of it with SECRET_KEY; nor is the request, only an
    HMAC of its fingerprint. A record that is completed in its view's own transaction is never
    seen by others while it is running.
    """

    class State(models.TextChoices):
        """What became of a request."""

        RUNNING = "running", _("running or interrupted")
        COMPLETED = "completed", _("completed")
        TOMBSTONE = "tombstone", _("tombstone")
        UNCERTAIN = "uncertain", _("uncertain")

    key_hash: models.CharField[str, str] = models.CharField(
        _("key hash"), max_length=64, unique=True
    )
    fingerprint: models.CharField[str, str] = models.CharField(_("fingerprint"), max_length=64)
    state: models.CharField[str, str] = models.CharField(
        _("state"), max_length=10, choices=State, default=State.RUNNING
    )
    attempt: models.CharField[str, str] = models.CharField(_("attempt"), max_length=32)
    user: models.CharField[str, str] = models.CharField(_("user"), max_length=255, blank=True)
    method: models.CharField[str, str] = models.CharField(_("method"), max_length=10)
    path: models.CharField[str, str] = models.CharField(_("path"), max_length=255)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    completed_at = models.DateTimeField(_("completed at"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, db_index=True)
    status = models.PositiveSmallIntegerField(_("status"), null=True)
    headers = models.JSONField(_("headers"), default=list)
    body = models.BinaryField(_("body"), default=b"")

    objects: ClassVar[models.Manager[IdempotencyRecord]] = IdempotencyRecordQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        permissions = (
            ("view_idempotency_body", "Can view the response in an idempotency record"),
            ("resolve_idempotencyrecord", "Can say what became of an uncertain request"),
        )
        verbose_name = _("idempotency record")
        verbose_name_plural = _("idempotency records")

    def __str__(self) -> str:
        return f"{self.method} {self.path} ({self.key_hash[:8]})"
