"""Rows that a late holder cannot overwrite: the check of fencing tokens in the database.

A process may be paused for longer than its TTL (by a long garbage collection, or with its machine)
and write when it resumes. The lock cannot prevent that write, but the row can: a write succeeds
only if its fence is higher than the fence of the row, or equal and from the same holder, or from
one that has handed its lock on to this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from asgiref.sync import sync_to_async
from django.db import models, router, transaction
from django.db.models import F, Q

from redlock_django.exceptions import LockLost
from redlock_django.locking.lock import Lock

Row = TypeVar("Row", bound=models.Model)


class _KeptByUpdates(models.Field):  # type: ignore[type-arg]
    """A column that `Model.save()` does not change, so that a stale instance cannot lower it."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else F(self.attname)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        # In the database it is a plain column: a site's migrations do not refer to this class.
        plain = type(self).__bases__[1]
        return name, f"django.db.models.{plain.__name__}", args, kwargs


class _Fence(_KeptByUpdates, models.BigIntegerField):  # type: ignore[type-arg]
    pass


class _FenceOwner(_KeptByUpdates, models.CharField):  # type: ignore[type-arg]
    pass


class FencedQuerySet(models.QuerySet[Row]):
    """A queryset with `fenced()`. For your own manager, subclass it."""

    def fenced(self, held: Lock, *, resource: str | None = None) -> Fenced[Row]:
        """Return these rows, to be written only if no newer holder of the lock has written to them.

        `resource` selects the fence if the lock has several resources. A row must always be
        fenced with the same resource: fences of different resources cannot be compared. Raises
        NotHeld if the lock was not acquired, ValueError for a filter that joins tables.
        """
        return Fenced(self, held, resource=resource, using=self._db)  # type: ignore[attr-defined]


class Fenced(Generic[Row]):
    """The rows of a queryset, to be written with the fence of a held lock."""

    def __init__(
        self,
        rows: models.QuerySet[Row],
        held: Lock,
        *,
        resource: str | None = None,
        using: str | None = None,
    ) -> None:
        if held.limit > 1:
            raise ValueError(
                f"{rows.model.__name__}: fences of different slots of "
                f"{', '.join(held.resources)} (limit={held.limit}) are not ordered, so they cannot "
                "refuse late writes. Use lock() without a limit for the rows"
            )
        self._rows = rows
        self._using = using or router.db_for_write(rows.model)
        self._resource = resource or ", ".join(held.resources)
        fence = held.fence if resource is None else held.fences[resource]
        self._mark = {"fence": fence, "fence_owner": held.fingerprint}
        # A lock that is handed on keeps its fence: its giver is an earlier holder nevertheless.
        owners = [*held.givers, held.fingerprint]
        self._not_newer = Q(fence__lt=fence) | Q(fence=fence, fence_owner__in=owners)
        # After waiting for a row, a database does not evaluate the fence again in a subquery.
        if rows.filter(self._not_newer).query.count_active_tables() > 1:
            raise ValueError(
                f"{rows.model.__name__}: fenced() works on columns of the model's own table; "
                "filter by its primary key"
            )

    def update(self, **values: Any) -> int:
        """Update all rows or none; return their number.

        Raises LockLost if a newer holder has written to one of them. The surrounding transaction
        can continue if LockLost is caught. In a transaction that reads from a snapshot, the
        database may raise OperationalError before it compares the fences.
        """
        rows = self._rows.using(self._using)
        with transaction.atomic(using=self._using):
            # Write first: the write waits for other transactions, so the read after it is current.
            written = rows.filter(self._not_newer).update(**values, **self._mark)
            # SELECT FOR UPDATE reads current rows even if the database has a snapshot (MySQL).
            if rows.filter(~self._not_newer).select_for_update().exists():
                raise LockLost(
                    f"{self._resource}: a newer holder of the lock has written to "
                    f"{rows.model._meta.label}",
                    resource=self._resource,
                )
        return written

    async def aupdate(self, **values: Any) -> int:
        """Update as `update` does, in a thread."""
        return await sync_to_async(self.update)(**values)

    def claim(self) -> models.QuerySet[Row]:
        """Write only the fence, and return the rows for reading.

        A holder claims rows before it reads them: after that no earlier holder can change them.
        Raises LockLost as `update` does.
        """
        self.update()
        return self._rows.using(self._using).all()

    async def aclaim(self) -> models.QuerySet[Row]:
        """Claim as `claim` does, in a thread."""
        await self.aupdate()
        return self._rows.using(self._using).all()


FencedManager = models.Manager.from_queryset(FencedQuerySet)


class FencedModel(models.Model):
    """An abstract model whose rows record the newest lock holder that wrote to them.

    `fence` is the fencing token of that holder, 0 if there was none, and `fence_owner` the
    fingerprint of its token. `save()` without `held` changes neither.
    """

    fence: models.BigIntegerField[int, int] = _Fence(default=0, editable=False)
    fence_owner: models.CharField[str, str] = _FenceOwner(
        max_length=64, default="", blank=True, editable=False
    )

    objects: ClassVar[FencedManager[Self]] = FencedManager()

    class Meta:
        abstract = True

    def save(self, *args: Any, held: Lock | None = None, **kwargs: Any) -> None:
        """Save the row; with `held`, raise LockLost if a newer holder has written to the row.

        Also if the row has been deleted since it was read: saving would bring it back.
        """
        if held is None:
            super().save(*args, **kwargs)
            return
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        # With multi-table inheritance, the fence is in the table of the parent model.
        rows = self._meta.get_field("fence").model._base_manager.filter(pk=self.pk)
        with transaction.atomic(using=using):
            # The claim locks the row until this transaction ends.
            found = Fenced(rows, held, using=using).update()
            is_new = self._state.adding or self.pk is None or kwargs.get("force_insert")
            if not (found or is_new):
                raise LockLost(f"{self._meta.label} {self.pk}: the row has been deleted")
            self.fence, self.fence_owner = held.fence, held.fingerprint
            super().save(*args, **kwargs)

    async def asave(self, *args: Any, held: Lock | None = None, **kwargs: Any) -> None:
        """Save as `save` does, in a thread."""
        await sync_to_async(self.save)(*args, held=held, **kwargs)
