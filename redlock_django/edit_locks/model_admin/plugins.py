"""Plug-ins that keep old versions of rows: saving an old version of a row is a save, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.apps import apps
from django.contrib import messages
from django.db import models, router
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import reverse

from redlock_django.edit_locks.model_admin.confirmations import (
    NotAsShown,
    add_inputs,
    compare_editors,
)
from redlock_django.edit_locks.model_admin.restored_rows import (
    RESTORED,
    RestoredRow,
    changed_rows,
    restored_input,
    restored_rows,
)
from redlock_django.edit_locks.presence_pages import add_above_form
from redlock_django.edit_locks.saving_transaction import SavingTransaction, transaction_of
from redlock_django.edit_locks.versions import locked_rows

View = Callable[[], HttpResponse]
"""A view of the plug-in, with its arguments."""


# django-reversion.


def revert(
    model_admin: Any, request: Any, object_id: str, version_id: str, view: View
) -> HttpResponse:
    """Answer with a form of an old version, which also restores the other rows of its revision."""
    version = get_object_or_404(_versions(), pk=version_id, object_id=object_id)
    if not model_admin.has_view_or_change_permission(request):
        return view()
    return _restore(model_admin, request, version, _rows(model_admin, request, version), view)


def recover(model_admin: Any, request: Any, version_id: str, view: View) -> HttpResponse:
    """Answer with a form that makes a deleted row again, unless the row exists again.

    It would be overwritten, for example after another editor has recovered it.
    """
    if not model_admin.has_add_permission(request):
        return view()
    version = get_object_or_404(_versions(), pk=version_id)
    rows = _rows(model_admin, request, version)
    if all(one.row is None for one in rows if one.version_pk == version.pk):
        return _restore(model_admin, request, version, rows, view)
    options = model_admin.opts
    text = f"Nothing was recovered: this {options.verbose_name} exists again."
    model_admin.message_user(request, text, messages.ERROR)
    name = f"admin:{options.app_label}_{options.model_name}_changelist"
    return HttpResponseRedirect(reverse(name, current_app=model_admin.admin_site.name))


def _versions() -> Any:
    return apps.get_model("reversion", "Version")  # type: ignore[misc]


def _rows(model_admin: Any, request: Any, version: Any) -> list[RestoredRow]:
    """Return the rows that a revert writes or deletes, as they are before it."""

    def ignored(model: type[models.Model]) -> frozenset[str]:
        is_own = issubclass(model_admin.model, model) or issubclass(model, model_admin.model)
        return frozenset(model_admin.edit_ignore if is_own else ())

    return restored_rows(version, model_admin.model, ignored, transaction_of(request))


def _restore(
    model_admin: Any, request: Any, version: Any, rows: Sequence[RestoredRow], view: View
) -> HttpResponse:
    """Compare all rows, then answer with the form; django-reversion reverts them before that."""
    if request.method == "POST":
        try:
            _compare(request, rows)
        except NotAsShown as refused:
            model_admin.message_user(request, str(refused), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
    response = view()
    add_inputs(response, [restored_input(rows)])
    others = [one for one in rows if not _is_of_form(model_admin.model, version, one)]
    if others:
        context = {
            "restored": [one.name for one in others if one.version_pk is not None],
            "deleted": [one.name for one in others if one.version_pk is None],
        }
        shown = render_to_string("redlock_django/edit_restored.html", context)
        add_above_form(response, shown, f"{model_admin.opts.model_name}_form")
    return response


def _compare(request: Any, rows: Sequence[RestoredRow]) -> None:
    """Raise NotAsShown if another editor has one of the rows open, or has changed one."""
    compare_editors(request, [one.row for one in rows if one.row is not None])
    changed = changed_rows(rows, request.POST.get(RESTORED, ""))
    if changed:
        raise NotAsShown.changed(one.name for one in changed)


def _is_of_form(model: type[models.Model], version: Any, one: RestoredRow) -> bool:
    """Return whether a row is that of the form, or has the columns of a parent of its model."""
    if one.version_pk is None or not issubclass(model, one.model):
        return bool(one.version_pk == version.pk)
    return bool(one.object_id == version.object_id)


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
