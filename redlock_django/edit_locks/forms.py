"""Model forms that refuse to save a row that is not the one their page has shown.

The row is read and locked while the form is validated, in the transaction that saves it. So nobody
can change it between the comparison and the UPDATE, whatever saves it: `save()`, `save_model()` or
a plug-in. The version that a page shows is an <input> beside a field of the form, so no template
has to know of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from django.core.exceptions import ValidationError
from django.db import models, router
from django.forms.formsets import DELETION_FIELD_NAME, ORDERING_FIELD_NAME
from django.forms.models import BaseModelForm, BaseModelFormSet
from django.utils.functional import cached_property
from django.utils.html import format_html_join

from redlock_django.edit_locks.differences import (
    MANY,
    conflict_message,
    deleted_message,
    open_message,
)
from redlock_django.edit_locks.inserted_rows import Keys, insert_only, keys_of
from redlock_django.edit_locks.saving_transaction import SavingTransaction
from redlock_django.edit_locks.versions import (
    changed_since,
    columns,
    is_row,
    keys,
    locked_rows,
    locked_sets,
    parsed_versions,
    row_version,
    version_of,
)
from redlock_django.exceptions import InvalidRedlock

if TYPE_CHECKING:
    _ModelForm = BaseModelForm[Any]
    _ModelFormSet = BaseModelFormSet[Any, Any]
else:
    _ModelForm = BaseModelForm
    _ModelFormSet = BaseModelFormSet

VERSION = "_edit_version"
"""The name of the input that has the version, after the prefix of its form."""

PAGE = "_edit_page"
"""The name of the input, and of the field of a report, that has the id of a page."""

DELETED = "deleted"
"""The version on a page that shows an old version of a row that is deleted."""

READ = "read"
"""The version on a page that is read only: browsers do not send what its disabled inputs show."""


class ComparedForm(_ModelForm):
    """A model form that is valid only if its row is the one that was shown."""

    edit_transaction: SavingTransaction
    edit_ignore: frozenset[str] = frozenset()
    edit_is_row = False
    """True for a form of a formset, whose rows are compared as a whole."""
    edit_stored: models.Model | None = None
    """The row as it is now, locked; None before it is compared, or if it has been deleted."""
    edit_refused = ""
    edit_editor: object | None = None
    """The other editor who has the row open, if that refuses the save."""
    edit_is_read_only = False
    """True for a form on a page that is read only: it saves nothing."""

    _shown = ""

    def __getitem__(self, name: str) -> Any:
        bound = super().__getitem__(name)
        if name == self._carrier() and not self.instance._state.adding:
            _render_version(self, bound)
        return bound

    def _carrier(self) -> str:
        """Return the field beside which the version is rendered, "" for a form without fields."""
        if self.edit_is_row:
            return str(self.instance._meta.pk.name)
        visible = (name for name, field in self.fields.items() if not field.widget.is_hidden)
        return next(visible, next(iter(self.fields), ""))

    def edit_names(self) -> list[str]:
        """Return the columns that are compared."""
        ignored = self._ignored()
        return [one.name for one in columns(type(self.instance)) if one.name not in ignored]

    def _ignored(self) -> frozenset[str]:
        """Return the columns that are not compared; one that the form saves always is."""
        return self.edit_ignore - {*self.fields}

    def edit_sets(self) -> list[str]:
        """Return the many-to-many fields that the form saves."""
        many = self.instance._meta.many_to_many
        return [one.name for one in many if one.name in self.fields]

    def edit_others(self) -> dict[str, list[str]]:
        """Return the initial values of fields that are no columns: they may be saved elsewhere.

        Left out are disabled fields, whose value is what the form has just read, and callables,
        whose value may differ each time.
        """
        options = self.instance._meta
        known = {one.name for one in [*options.concrete_fields, *options.many_to_many]}
        known |= {DELETION_FIELD_NAME, ORDERING_FIELD_NAME, *self.edit_ignore}
        found = {}
        for name, field in self.fields.items():
            value = self.initial.get(name, field.initial)
            if name not in known and not field.disabled and not callable(value):
                found[name] = keys(value if isinstance(value, MANY) else [value])
        return found

    def edit_version(self) -> str:
        """Return the version for the page: of the row that it shows beside what was entered."""
        if self.edit_is_read_only:
            return READ
        if not self.is_bound:
            sets = {name: keys(self.initial.get(name) or ()) for name in self.edit_sets()}
            sets |= self.edit_others()
            (row,) = self.edit_transaction.reverted or [self.instance]
            return DELETED if row is None else self._version_of(row, sets)
        if self.edit_refused and self._shown:
            return self._shown  # the page shows both, so the editor may now choose
        return self._sent()

    def _sent(self) -> str:
        """Return the version that the page has sent."""
        return str(self.data.get(self.add_prefix(VERSION), ""))

    def _version_of(self, row: models.Model, sets: dict[str, list[str]]) -> str:
        if self.edit_is_row:
            return row_version(row, self._ignored(), sets)
        return json.dumps(version_of(row, self.edit_names(), sets))

    def full_clean(self) -> None:
        """Validate the form, and refuse it if the row has changed."""
        is_saved = self.is_bound and self.edit_is_saved()
        is_new = self.instance._state.adding
        before = keys_of(self.instance)
        if is_saved and not is_new:
            self._compare()
            is_new = not self.edit_refused and self.edit_stored is None
        super().full_clean()
        if self.edit_refused:
            self.add_error(None, ValidationError(self._message(), code="edit_conflict"))
        elif is_saved:
            self._insert(before, is_new=is_new)

    def edit_is_saved(self) -> bool:
        """Return whether the row will be saved or deleted: a formset leaves out rows as they are.

        In the admin, a row that may not be changed counts as it is, although it may be deleted.
        """
        changed = not self.edit_is_row or self.has_changed()
        return changed or DELETION_FIELD_NAME in self.changed_data

    def _compare(self) -> None:
        self.edit_transaction.compared.append(self)
        if self._sent() == READ:
            self.edit_refused = "read only"
            return
        row = self.instance
        if not self.edit_is_row:
            self.note_editors(self.edit_transaction.editors_of([row]))
        if self.edit_editor is not None:
            self.edit_refused = "open"
            return
        if not self.edit_is_row:
            self.edit_stored = locked_row(row, self.edit_transaction)
        if (stored := self.edit_stored) is None:
            is_known = self.edit_transaction.reverted and self._sent() == DELETED
            self.edit_refused = "" if is_known else "deleted"
            return
        self._compare_with(stored)
        if not self.edit_refused:
            # What the form does not have is saved as it is now, also if it was just changed. An
            # old version replaces what is compared.
            old = {*self.edit_names()} if self.edit_transaction.reverted else ()
            for column in columns(type(row)):
                if not column.primary_key and column.name not in old:
                    if isinstance(column, models.FileField):
                        # With a previous value, an ImageField opens its file for the size.
                        row.__dict__.pop(column.attname, None)
                    setattr(row, column.attname, getattr(stored, column.attname))

    def note_editors(self, editors: Sequence[tuple[models.Model, object]]) -> None:
        """Note the other editor who has the row open, if that refuses the save."""
        own = (editor for row, editor in editors if row is self.instance)
        self.edit_editor = next(own, None)

    def _compare_with(self, stored: models.Model) -> None:
        if not self.fields:
            return  # it saves the row as it is stored
        shown = self._sent()
        self._changed: frozenset[str] | None = None
        sets = locked_sets(stored, self.edit_sets(), str(stored._state.db)) | self.edit_others()
        self._shown = self._version_of(stored, sets)
        if self.edit_is_row:
            same = is_row(stored, shown, self._ignored(), sets)
        else:
            version = parsed_versions(shown)
            self._changed = changed_since(version, stored, self.edit_names(), sets)
            same = bool(version) and not self._changed
        if not shown:
            self.edit_refused = "missing"
        elif not same:
            self.edit_refused = "changed"

    def _insert(self, before: Keys, *, is_new: bool) -> None:
        """Refuse a new primary key that another row has: Django would overwrite that row."""
        using = router.db_for_write(type(self.instance), instance=self.instance)
        keys = keys_of(self.instance)
        changed = [model for model, pk in keys.items() if not is_new and pk != before[model]]
        inserted = [*keys] if is_new else changed
        taken = self.edit_transaction.taken
        for model in inserted:
            is_taken = taken and (taken.model, taken.form) == (model, self.prefix)
            if is_taken or (model in changed and locked_rows(model, [keys[model]], using)):
                unique = (model._meta.pk.name,)
                self.add_error(None, self.instance.unique_error_message(model, unique))
        if inserted and not self.errors:
            insert_only(self.instance, inserted, form=self.prefix)

    def _message(self) -> Any:
        if self.edit_refused == "read only":
            return "You can read it, not change it."
        if self.edit_refused == "open":
            return open_message(self.edit_editor)
        if self.edit_stored is None:
            return deleted_message(self.instance)
        is_known = self.edit_refused != "missing"
        return conflict_message(self, self.edit_stored, self._changed if is_known else None)


def locked_row(row: models.Model, saving: SavingTransaction) -> models.Model | None:
    """Return the row as it is now, locked until it is saved; None if it has been deleted.

    A view calls it before it makes the form; the form then gets the same row without a query.
    """
    if saving.locked is not None and saving.locked[0] is row:
        return saving.locked[1]
    using = router.db_for_write(type(row), instance=row)
    saving.begin(using)
    stored = locked_rows(type(row), [row.pk], using).get(row.pk)
    if saving.is_active:
        saving.locked = row, stored
    return stored


def _render_version(form: ComparedForm, bound: Any) -> None:
    """Make a field of a form render the version of the row, too."""
    if "as_widget" in vars(bound):
        return
    plain = bound.as_widget

    def as_widget(widget: Any = None, attrs: Any = None, only_initial: bool = False) -> Any:
        rendered = plain(widget, attrs, only_initial)
        if only_initial:
            return rendered
        inputs = [(form.add_prefix(VERSION), form.edit_version())]
        if not form.edit_is_row and form.edit_transaction.page:
            inputs.append((PAGE, form.edit_transaction.page))
        hidden = '<input type="hidden" name="{}" value="{}" autocomplete="off">'
        return rendered + format_html_join("", hidden, inputs)

    bound.as_widget = as_widget


class ComparedFormSet(_ModelFormSet):
    """A formset that is valid only if the rows that it would save are those that were shown."""

    edit_transaction: SavingTransaction
    model: type[models.Model]

    @cached_property
    def forms(self) -> list[Any]:
        """The forms; if they read other tables, made after the rows that they save are locked."""
        forms = super().forms
        if self.is_bound and any(form.edit_others() for form in self.initial_forms):
            self._lock()
            forms = super().forms  # made again, with what is stored now
        return forms

    def _construct_form(self, i: int, **kwargs: Any) -> Any:
        form = super()._construct_form(i, **kwargs)  # type: ignore[misc]
        if not isinstance(form, ComparedForm):
            raise InvalidRedlock(
                f"{type(self).__qualname__} has made a form of {type(form).__qualname__}, whose "
                "row is not compared: its forms must be of the class that it has as 'form'. Give "
                f"{self.model._meta.label} a ModelAdmin with EditLockMixin, and remove the inline"
            )
        return form

    def full_clean(self) -> None:
        """Read and lock the rows that were edited, then validate all forms."""
        if self.is_bound:
            self._note_deleted()
            self._lock()
        super().full_clean()
        for form in self.initial_forms if self.is_bound else ():
            # Django does not look at the errors of a row that is to be deleted.
            if self._is_deleted(form) and form.edit_refused not in ("", "deleted"):
                self._non_form_errors += form.non_field_errors()  # type: ignore[attr-defined]

    def _note_deleted(self) -> None:
        """Note the rows that Django has not found, and keep what was entered on the page."""
        missing = [form for form in self.initial_forms if form.instance._state.adding]
        for form in missing:
            form.edit_refused = "deleted"
        if missing:  # the admin shows a row for each instance that is in both of these
            self._queryset = [form.instance for form in self.initial_forms]

    def _lock(self) -> None:
        """Lock the rows that would be saved or deleted, and note them as they are now."""
        found = [form for form in self.initial_forms if not form.instance._state.adding]
        edited = [form for form in found if form.edit_is_saved()]
        if not edited:
            return
        shown = [form.instance for form in edited]
        editors = self.edit_transaction.editors_of(shown)
        using = router.db_for_write(self.model, instance=shown[0])
        self.edit_transaction.begin(using)
        rows = locked_rows(self.model, [row.pk for row in shown], using)
        for form in edited:
            form.note_editors(editors)
            form.edit_stored = rows.get(form.instance.pk)

    def _is_deleted(self, form: Any) -> bool:
        return self.can_delete and hasattr(form, "cleaned_data") and self._should_delete_form(form)  # type: ignore[attr-defined]


def compared_form(form: type[Any], **attributes: Any) -> type[Any]:
    """Return a form class whose forms compare their row; `attributes` are set in the class.

    Raises InvalidRedlock if it is not a model form.
    """
    if not issubclass(form, BaseModelForm):
        raise InvalidRedlock(
            f"{form.__qualname__} is not a ModelForm, so it has no row that could be compared. "
            "Derive it from django.forms.ModelForm"
        )
    bases = (form,) if issubclass(form, ComparedForm) else (ComparedForm, form)
    made: Any = type(form)
    return cast(
        "type[Any]", made(form.__name__, bases, {"__module__": form.__module__, **attributes})
    )


class _OfDeletedRow(_ModelForm):
    def full_clean(self) -> None:
        super().full_clean()
        self.add_error(None, ValidationError(deleted_message(self.instance), code="edit_conflict"))


def form_of_deleted_row(form: type[Any]) -> type[Any]:
    """Return a form class that shows what was entered for a row that has been deleted."""
    made: Any = type(form)
    return cast("type[Any]", made(form.__name__, (_OfDeletedRow, form), {}))


def compared_formset(formset: type[Any], **attributes: Any) -> type[Any]:
    """Return a formset class whose forms compare their rows; `attributes` are set in its forms."""
    form = compared_form(formset.form, edit_is_row=True, **attributes)
    bases = (formset,) if issubclass(formset, ComparedFormSet) else (ComparedFormSet, formset)
    made = {"form": form, "edit_transaction": attributes["edit_transaction"]}
    return type(formset.__name__, bases, {"__module__": formset.__module__, **made})
