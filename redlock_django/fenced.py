"""Rows that a late holder cannot overwrite: the storage's side of the fencing token.

A process may sleep through its TTL (a long garbage collection, a stopped machine) and wake up
with a write on its lips. The lock cannot stop it; the row can, by comparing: a write counts only
if its fence is higher than the row's, or the same from the same holder.
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
    """A column that `Model.save()` leaves as it is, so that a stale instance cannot lower it."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else F(self.attname)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, kwargs = super().deconstruct()
        # In the database it is a plain column, and a site's migrations need not know of us.
        plain = type(self).__bases__[1]
        return name, f"django.db.models.{plain.__name__}", args, kwargs


class _Fence(_KeptByUpdates, models.BigIntegerField):  # type: ignore[type-arg]
    pass


class _FenceOwner(_KeptByUpdates, models.CharField):  # type: ignore[type-arg]
    pass


class FencedQuerySet(models.QuerySet[Row]):
    """A queryset with `fenced()`; for a manager of your own, inherit from it."""

    def fenced(self, held: Lock, *, resource: str | None = None) -> Fenced[Row]:
        """Write to these rows only as long as no newer holder of the lock has.

        `resource` says whose fence it is where the lock holds several. A row must always be
        fenced by the same resource: fences of different ones cannot be compared. Raises
        NotHeld if the lock was not taken, ValueError for a filter that joins tables.
        """
        return Fenced(self, held, resource=resource, using=self._db)  # type: ignore[attr-defined]


class Fenced(Generic[Row]):
    """The rows of a queryset, to be written under the fence of a lock that is held."""

    def __init__(
        self,
        rows: models.QuerySet[Row],
        held: Lock,
        *,
        resource: str | None = None,
        using: str | None = None,
    ) -> None:
        self._rows = rows
        self._using = using or router.db_for_write(rows.model)
        self._resource = resource or ", ".join(held.resources)
        fence = held.fence if resource is None else held.fences[resource]
        self._mark = {"fence": fence, "fence_owner": held.fingerprint}
        self._ours = Q(fence__lt=fence) | Q(**self._mark)
        # In a subquery the database would not look at the fence again after it waited for a row.
        if rows.filter(self._ours).query.count_active_tables() > 1:
            raise ValueError(
                f"{rows.model.__name__}: fenced() works on columns of the model's own table; "
                "filter by its primary key"
            )

    def update(self, **values: Any) -> int:
        """Update all rows, or none; return how many there were.

        Raises LockLost where a newer holder has written one of them. A caught LockLost leaves
        the transaction around it usable. Where the transaction reads from a snapshot, the
        database may refuse before the fence is looked at, with an OperationalError of its own.
        """
        rows = self._rows.using(self._using)
        with transaction.atomic(using=self._using):
            # First the write: it waits for others, so what is read after it is not too old.
            written = rows.filter(self._ours).update(**values, **self._mark)
            # Locking only to read past the snapshot of a database that has one (MySQL).
            if rows.filter(~self._ours).select_for_update().exists():
                raise LockLost(
                    f"{self._resource}: a newer holder of the lock has written to "
                    f"{rows.model._meta.label} already",
                    resource=self._resource,
                )
        return written

    async def aupdate(self, **values: Any) -> int:
        """As `update`, for coroutines."""
        return await sync_to_async(self.update)(**values)

    def claim(self) -> models.QuerySet[Row]:
        """Write the fence alone, and return the rows to be read now.

        A holder claims before it reads: from then on no late holder can change what it read.
        Raises LockLost as `update` does.
        """
        self.update()
        return self._rows.using(self._using).all()

    async def aclaim(self) -> models.QuerySet[Row]:
        """As `claim`, for coroutines."""
        await self.aupdate()
        return self._rows.using(self._using).all()


FencedManager = models.Manager.from_queryset(FencedQuerySet)


class FencedModel(models.Model):
    """A model whose rows remember the newest lock holder that wrote to them.

    `fence` is that holder's fencing token, 0 if there was none, and `fence_owner` the fingerprint
    of its token. A plain `save()` leaves both alone.
    """

    fence: models.BigIntegerField[int, int] = _Fence(default=0, editable=False)
    fence_owner: models.CharField[str, str] = _FenceOwner(
        max_length=64, default="", blank=True, editable=False
    )

    objects: ClassVar[FencedManager[Self]] = FencedManager()

    class Meta:
        abstract = True

    def save(self, *args: Any, held: Lock | None = None, **kwargs: Any) -> None:
        """Save; with `held`, only if no newer holder of that lock has written to the row.

        Raises LockLost otherwise.
        """
        if held is None:
            super().save(*args, **kwargs)
            return
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        # An inherited row is fenced in the table that has the columns.
        rows = self._meta.get_field("fence").model._base_manager.filter(pk=self.pk)
        with transaction.atomic(using=using):
            # The claim keeps the row ours until this transaction ends.
            Fenced(rows, held, using=using).claim()
            self.fence, self.fence_owner = held.fence, held.fingerprint
            super().save(*args, **kwargs)

    async def asave(self, *args: Any, held: Lock | None = None, **kwargs: Any) -> None:
        """As `save`, for coroutines."""
        await sync_to_async(self.save)(*args, held=held, **kwargs)
