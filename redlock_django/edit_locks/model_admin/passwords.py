"""The page of a UserAdmin on which a user gets a new password: only the password is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db import models
from django.http import HttpResponse, HttpResponseRedirect

from redlock_django.edit_locks.model_admin.confirmations import (
    NotAsShown,
    add_inputs,
    compare_rows,
    rows_input,
)
from redlock_django.edit_locks.saving_transaction import transaction_of
from redlock_django.edit_locks.versions import columns


def change_password(
    model_admin: Any, request: Any, user: models.Model | None, view: Callable[[], HttpResponse]
) -> HttpResponse:
    """Answer with the form of a new password; lock the user first, and compare the old password.

    Django reads the user and saves the whole row, so it must not change between. A login changes
    the row, too: other columns than the password are not compared.
    """
    if user is None or not model_admin.has_change_permission(request, user):
        return view()
    others = {one.name for one in columns(type(user))} - {"password"}
    if request.method == "POST":
        try:
            compare_rows(request, model_admin.model, [user], others)
        except NotAsShown as changed:
            model_admin.message_user(request, str(changed), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        transaction_of(request).is_row_compared = True
    response = view()
    add_inputs(response, [rows_input([user], others)])
    return response
