"""Checks that plug-ins which keep old versions of rows need before they save one."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import models, router
from django.shortcuts import get_object_or_404

from redlock_django.edit_locks.forms import SavingTransaction
from redlock_django.edit_locks.versions import locked_rows


def is_recovered(
    model: type[models.Model], version_id: str, transaction: SavingTransaction
) -> bool:
    """Return whether the row of a version of django-reversion exists, although it was deleted.

    Nobody else recovers it until the end of the transaction.
    """
    versions: Any = apps.get_model("reversion", "Version")  # type: ignore[misc]
    version = get_object_or_404(versions, pk=version_id)
    using = router.db_for_write(versions)
    transaction.begin(using)
    transaction.begin(version.db)
    _lock_first(
        versions.objects.get_for_object_reference(model, version.object_id, version.db), using
    )
    deleted = versions.objects.get_deleted(model, version.db)
    return not deleted.filter(object_id=version.object_id).exists()


def lock_history(model: type[models.Model], pk: str, transaction: SavingTransaction) -> None:
    """Keep others from saving an old version of a row until the end of the transaction.

    The row may be deleted, so that it cannot be locked itself. For django-simple-history.
    """
    options: Any = model._meta
    history: Any = getattr(model, options.simple_history_manager_attribute)
    using = router.db_for_write(history.model)
    transaction.begin(using)
    _lock_first(history.filter(**{options.pk.attname: pk}), using)


def _lock_first(versions: models.QuerySet[Any], using: str) -> None:
    """Lock the oldest version, as everybody does who saves one of them."""
    oldest = versions.order_by("pk").values_list("pk", flat=True).first()
    locked_rows(versions.model, [oldest], using)
