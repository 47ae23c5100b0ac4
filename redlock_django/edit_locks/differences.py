"""Both versions of a row, field by field: what the editor has entered and what is stored now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.template.loader import render_to_string
from django.utils.formats import localize
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime

MANY = (models.QuerySet, list, tuple, set, frozenset)
"""The types of a value that is many values."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field as strings to display; `is_new` if the stored value is not the one shown before."""

    label: str
    entered: str
    stored: str
    is_new: bool


def conflict_message(form: Any, stored: models.Model, changed: frozenset[str] | None) -> SafeString:
    """Return the error of a form whose row has changed, with both versions.

    `stored` is the row as it is now. `changed` has the fields that are not as they were shown, None
    if only the row as a whole was compared.
    """
    shown = list(_differences(form, stored, changed))
    context = {
        "name": stored._meta.verbose_name,
        "differences": shown,
        "has_others": bool(changed and changed - {*form.fields}) or not shown,
        "has_files": bool(form.files),
    }
    return render_to_string("redlock_django/edit_conflict.html", context)


def deleted_message(row: models.Model) -> str:
    """Return the error of a form whose row has been deleted."""
    return (
        f"Not saved: this {row._meta.verbose_name} was deleted after you opened this page. "
        "What you entered is still here."
    )


def open_message(editor: object) -> str:
    """Return the error of a form whose row another editor has open."""
    return f"Not saved. {editor}. What you entered is still in the form."


def _differences(
    form: Any, stored: models.Model, changed: frozenset[str] | None
) -> Iterator[Difference]:
    columns = {one.name: one for one in [*stored._meta.fields, *stored._meta.many_to_many]}
    # Without `changed`, any field that is compared may have the change that refused the save.
    others = form.edit_others() if changed is None else ()
    for name, field in form.fields.items():
        if name == stored._meta.pk.name:
            continue
        column = columns.get(name)
        now = _stored(stored, column) if column else _initial(form, name)
        ours = form.cleaned_data[name] if name in form.cleaned_data else form[name].data
        entered, is_now = _shown(ours, column), _shown(now, column)
        is_new = changed is not None and name in changed
        if is_new or (entered != is_now and (column or name in others)):
            if getattr(field.widget, "input_type", "") == "password" or _is_password(stored, name):
                entered = is_now = "••••••"
            label = str(form[name].label)
            yield Difference(label=label, entered=entered, stored=is_now, is_new=is_new)


def _is_password(row: models.Model, name: str) -> bool:
    """Return whether a column has the hash of a password, which a form may show in parts only."""
    from django.contrib.auth.base_user import AbstractBaseUser  # it needs apps that are loaded

    return isinstance(row, AbstractBaseUser) and name == "password"


def _stored(row: models.Model, field: Any) -> Any:
    value = getattr(row, field.name)
    return list(value.all()) if field.many_to_many else value


def _initial(form: Any, name: str) -> Any:
    """Return the initial value of a field as the form would return it if it were sent."""
    field, value = form.fields[name], form[name].initial
    try:
        return field.clean(field.prepare_value(value))
    except (ValidationError, AttributeError, OSError, TypeError, ValueError):
        return value  # the field accepts only what its widget sends


def _shown(value: Any, field: Any) -> str:
    if isinstance(value, MANY):
        return ", ".join(sorted(_shown(one, field) for one in value)) or "–"
    if value is None or value == "" or getattr(value, "name", value) in (None, ""):
        return "–"  # also a FileField without a file
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, dt.datetime) and is_aware(value):
        value = localtime(value)
    choices = dict(getattr(field, "flatchoices", ()) or ())
    if choices and not isinstance(value, dict) and value in choices:
        return str(choices[value])
    if isinstance(value, dt.date | dt.time | Decimal | float | int):
        return str(localize(value))
    return str(value)
