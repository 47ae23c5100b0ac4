"""Lists whose rows are edited in place: `list_editable`."""

from __future__ import annotations

import re
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.http import QueryDict


def without_deleted(data: QueryDict, rows: models.QuerySet[Any]) -> tuple[QueryDict, int]:
    """Return what a list has sent without those that are not among `rows`, and how many these are.

    They are deleted. Django shows and saves a list only if each of its forms has a row.
    """
    pk: Any = rows.model._meta.pk
    keys = [key for key in data if re.fullmatch(r"form-\d+-.+", key)]
    names = [key for key in keys if key.endswith(f"-{pk.name}")]
    try:
        pks = [*map(pk.to_python, map(data.get, names))]
    except ValidationError:
        return data, 0  # Django reports it
    sent = {name.removesuffix(f"-{pk.name}"): value for name, value in zip(names, pks, strict=True)}
    found = {*rows.filter(pk__in=pks).values_list("pk", flat=True)}
    kept = sorted((int(form.split("-")[1]), form) for form, pk in sent.items() if pk in found)
    if len(kept) == len(sent):
        return data, 0
    numbers = {form: f"form-{number}" for number, (_, form) in enumerate(kept)}
    changed = data.copy()
    for key in keys:
        changed.pop(key)
    for key in keys:
        _, index, field = key.split("-", 2)
        if number := numbers.get(f"form-{index}"):
            changed.setlist(f"{number}-{field}", data.getlist(key))
    for count in ("form-TOTAL_FORMS", "form-INITIAL_FORMS"):
        changed[count] = str(len(kept))
    return changed, len(sent) - len(kept)


def show_sent_rows(response: Any) -> None:
    """Show each row that a list has sent beside its form, after a refusal.

    Django shows the rows that are on the page by then: others if one has moved to another page or
    does not match a filter any more.
    """
    page: Any = (getattr(response, "context_data", None) or {}).get("cl")
    formset = getattr(page, "formset", None)
    if formset is None or not formset.is_bound:
        return
    sent = [form.instance for form in formset.forms]
    rows = page.root_queryset.in_bulk([row.pk for row in sent])
    rows |= {row.pk: row for row in page.result_list}  # these may have more, for a column
    page.result_list = [rows.get(row.pk, row) for row in sent]
