"""Plug-ins that keep old versions of rows: saving an old version of a row is a save, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.contrib import messages
from django.db import models, router
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.translation import gettext as _

from redlock_django.edit_locks.model_admin.confirmations import (
    NotAsShown,
    add_inputs,
    compare_related,
    compare_rows,
    listing_of,
    related_input,
    row_input,
)
from redlock_django.edit_locks.saving_transaction import SavingTransaction, transaction_of
from redlock_django.edit_locks.versions import locked_rows, row_version

View = Callable[[], HttpResponse]
"""A view of the plug-in, with its arguments."""


# django-reversion.


def revert(model_admin: Any, request: Any, row: models.Model | None, view: View) -> HttpResponse:
    """Answer with a form of an old version; compare the row first, and those of its inlines.

    django-reversion reverts them before it shows or saves the form. `row` is as it is now.
    """
    if row is None:
        return view()
    request._redlock_related = _digest_of_inlines(model_admin, request, row)
    inputs = [row_input(row, model_admin.edit_ignore), related_input(request)]
    if request.method == "POST":
        try:
            compare_rows(request, model_admin.model, [row], model_admin.edit_ignore)
            compare_related(request, _digest_of_inlines(model_admin, request, row))
        except NotAsShown as changed:
            model_admin.message_user(request, str(changed), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
    response = view()
    add_inputs(response, inputs)
    return response


def _digest_of_inlines(model_admin: Any, request: Any, obj: Any) -> str:
    return listing_of(
        [
            row_version(row)
            for formset, inline in list(model_admin.get_formsets_with_inlines(request, obj))
            for row in formset(instance=obj, queryset=inline.get_queryset(request)).get_queryset()
        ]
    )


def recover(model_admin: Any, request: Any, version_id: str, view: View) -> HttpResponse:
    """Answer with a form that makes a deleted row again, unless the row exists again.

    It would be overwritten, for example after another editor has recovered it.
    """
    may_add = model_admin.has_add_permission(request)
    if not (may_add and _is_recovered(model_admin.model, version_id, transaction_of(request))):
        return view()
    options = model_admin.opts
    text = _("Nothing was recovered: this %(name)s exists again.") % {"name": options.verbose_name}
    model_admin.message_user(request, text, messages.ERROR)
    name = f"admin:{options.app_label}_{options.model_name}_changelist"
    return HttpResponseRedirect(reverse(name, current_app=model_admin.admin_site.name))


def _is_recovered(
    model: type[models.Model], version_id: str, transaction: SavingTransaction
) -> bool:
    """Return whether the row of a version exists, although it was deleted.

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


# django-simple-history.


def show_old_version(model_admin: Any, request: Any, pk: str, view: View) -> HttpResponse:
    """Answer with a form that has the values of an old version.

    So the version that the page carries is that of the row as it is now.
    """
    transaction = transaction_of(request)
    if request.method == "POST":
        _lock_history(model_admin.model, pk, transaction)
    transaction.reverted = [model_admin.get_object(request, pk)]
    return view()


def _lock_history(model: type[models.Model], pk: str, transaction: SavingTransaction) -> None:
    """Keep others from saving an old version of a row until the end of the transaction.

    The row may be deleted, so that it cannot be locked itself.
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
