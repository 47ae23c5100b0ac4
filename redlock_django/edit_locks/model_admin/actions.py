"""Actions of the admin, which refuse rows that have changed since the list has shown them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse

from redlock_django.edit_locks.model_admin.confirmations import (
    NotAsShown,
    add_inputs,
    compare_rows,
    related_input,
    rows_input,
)


def compared_action(action: Any) -> Any:
    """Return an action as `get_actions()` has it, which compares the rows before it runs."""
    if isinstance(action, tuple):
        function, *about = action
        return (_compared(function), *about)
    return replace(action, func=_compared(action.func))  # since Django 6.1


def _compared(action: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(action)
    def run(model_admin: Any, request: HttpRequest, queryset: Any) -> Any:
        ignored = model_admin.edit_ignore
        try:
            if request.POST.get("select_across", "0") != "0":
                raise NotAsShown(
                    "Nothing was done: rows of other pages were selected, which this page does "
                    "not show. Select rows on one page, or show more rows on a page."
                )
            rows = list(queryset)
            compare_rows(request, model_admin.model, rows, ignored)
            # Read again, as locked, without others that the filters of the list match by now.
            queryset = queryset.filter(pk__in=[row.pk for row in rows])
            response = action(model_admin, request, queryset)
        except NotAsShown as changed:
            model_admin.message_user(request, str(changed), messages.ERROR)
            return None
        if isinstance(response, HttpResponse):  # it asks for a confirmation
            add_inputs(response, [rows_input(rows, ignored), related_input(request)])
        return response

    return run
