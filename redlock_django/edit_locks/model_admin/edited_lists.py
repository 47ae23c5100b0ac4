"""Lists whose rows are edited in place: `list_editable`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.datastructures import MultiValueDict

_INPUT = re.compile(r"form-(\d+)-(.+)")


def drop_deleted(request: Any, rows: models.QuerySet[Any]) -> int:
    """Remove what a list has sent of rows that are not among `rows`; return how many these are.

    They are deleted. Django shows and saves a list only if each of its forms has a row.
    """
    pk: Any = rows.model._meta.pk
    inputs = filter(None, map(_INPUT.fullmatch, request.POST))
    sent = {int(one[1]): request.POST[one[0]] for one in inputs if one[2] == pk.name}
    try:
        pks = {form: pk.to_python(value) for form, value in sent.items()}
    except ValidationError:
        return 0  # Django reports it
    found = {*rows.filter(pk__in=pks.values()).values_list("pk", flat=True)}
    kept = sorted(form for form in pks if pks[form] in found)
    if len(kept) < len(sent):
        numbers = {form: number for number, form in enumerate(kept)}
        request.POST = request.POST.copy()
        for inputs_of_forms in (request.POST, request.FILES):
            _renumber(inputs_of_forms, numbers)
        for count in ("form-TOTAL_FORMS", "form-INITIAL_FORMS"):
            request.POST[count] = str(len(kept))
    return len(sent) - len(kept)


def _renumber(inputs: MultiValueDict[str, Any], numbers: Mapping[int, int]) -> None:
    """Move the forms of a list to their new numbers, and remove those without one."""
    named = [*filter(None, map(_INPUT.fullmatch, inputs))]
    values = [inputs.pop(one[0]) for one in named]
    for one, value in zip(named, values, strict=True):
        if (number := numbers.get(int(one[1]))) is not None:
            inputs.setlist(f"form-{number}-{one[2]}", value)


def show_sent_rows(page: Any) -> None:
    """Show each row that a list has sent beside its form, after a refusal.

    Django shows the rows that are on the page by then: others if one has moved to another page or
    does not match a filter any more.
    """
    if page.formset is None or not page.formset.is_bound:
        return
    sent = [form.instance for form in page.formset.forms]
    rows = page.root_queryset.in_bulk([row.pk for row in sent])
    rows |= {row.pk: row for row in page.result_list}  # these may have more, for a column
    page.result_list = [rows.get(row.pk, row) for row in sent]
