"""`EditLockMixin`: a ModelAdmin that saves nothing over what its editor has not seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminToField
from django.contrib.admin.options import TO_FIELD_VAR, IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import PAGE_VAR
from django.core.checks import CheckMessage
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from redlock_django.edit_locks.forms import (
    ComparedFormSet,
    compared_form,
    compared_formset,
    form_of_deleted_row,
    locked_row,
)
from redlock_django.edit_locks.inserted_rows import KeyTaken
from redlock_django.edit_locks.model_admin import plugins
from redlock_django.edit_locks.model_admin.actions import compared_action
from redlock_django.edit_locks.model_admin.admin_checks import check_admin, check_class
from redlock_django.edit_locks.model_admin.confirmations import (
    NotAsShown,
    add_inputs,
    compare_deletion,
    compare_rows,
    related_input,
    rows_input,
)
from redlock_django.edit_locks.model_admin.edited_lists import drop_deleted, show_sent_rows
from redlock_django.edit_locks.model_admin.passwords import change_password
from redlock_django.edit_locks.presence_pages import ACTION, PresencePage, answer, other_editors
from redlock_django.edit_locks.saving_transaction import SavingTransaction, transaction_of
from redlock_django.exceptions import InvalidRedlock

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = object


class EditLockMixin(_ModelAdmin):
    """A ModelAdmin that refuses to save or delete a row that has changed since it was shown.

    List it before ModelAdmin. A change form says which other editor has the row open, and since
    when: with `edit_conflict = "warn"` the row can be edited anyway, with "refuse" only read.
    `edit_using` is the alias of REDLOCK whose locks note that. `edit_ignore` names fields whose
    changes are no conflict, for example one that a job writes: they are saved as they are stored,
    unless the form has them.
    `edit_reading_actions` names actions that change nothing; they also run on rows that have
    changed, and on all rows of all pages. Raises InvalidRedlock when the class is created with a
    wrong value.
    """

    edit_conflict: str = "warn"
    edit_using: str = "default"
    edit_ignore: Collection[str] = ()
    edit_reading_actions: Collection[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls, EditLockMixin)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check the options, and that nothing overrides the comparison."""
        return [*super().check(**kwargs), *check_admin(self, EditLockMixin)]

    # Forms.

    def get_form(
        self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> type[Any]:
        """Return the form class, which compares the row; a new one, with rows that have its key."""
        form = super().get_form(request, obj, change=change, **kwargs)
        transaction = transaction_of(request)
        if obj is None and transaction.is_deleted:
            return form_of_deleted_row(form)
        if obj is not None and transaction.is_active and request.method == "POST":
            locked_row(obj, transaction)  # before the form reads what it shows from other tables
        return compared_form(form, **self._attributes(request))

    def get_formsets_with_inlines(self, request: Any, obj: Any = None) -> Iterator[Any]:
        """Yield the formsets of the inlines, which compare their rows."""
        for formset, inline in super().get_formsets_with_inlines(request, obj):
            ignored = frozenset(getattr(inline, "edit_ignore", ()))
            about = {**self._attributes(request), "edit_ignore": ignored}
            yield compared_formset(formset, **about), inline

    def get_changelist_formset(self, request: Any, **kwargs: Any) -> type[Any]:
        """Return the formset of `list_editable`, which compares the rows."""
        formset = super().get_changelist_formset(request, **kwargs)
        return compared_formset(formset, **self._attributes(request))

    def _attributes(self, request: Any) -> dict[str, Any]:
        return {
            "edit_transaction": transaction_of(request),
            "edit_ignore": frozenset(self.edit_ignore),
        }

    def construct_change_message(
        self, request: Any, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Return the message about a saved form; raise InvalidRedlock if it was not compared."""
        saving = transaction_of(request)
        is_compared = saving.is_row_compared or form in saving.compared
        forms_of_rows = all(isinstance(one, ComparedFormSet) for one in formsets or ())
        if not add and not (forms_of_rows and is_compared):
            raise InvalidRedlock(
                f"{type(self).__qualname__} has saved a form that was not compared with its row. "
                "Call super() in get_form(), get_formsets_with_inlines() and "
                "get_changelist_formset()"
            )
        return super().construct_change_message(request, form, formsets, add)

    # Views.

    def _saving(self, request: Any) -> SavingTransaction:
        """Return the transactions of a view that begins."""
        transaction = transaction_of(request, renew=True)
        if self.edit_conflict == "refuse":
            transaction.editors_of = partial(self._editors_of, request)
        return transaction

    def changeform_view(
        self, request: Any, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Show or save one row, in the transaction in which it is compared."""
        if request.method == "POST" and object_id is not None and ACTION in request.POST:
            return self._answer(request, object_id)
        view = partial(super().changeform_view, request, object_id, form_url, extra_context)

        def show(taken: KeyTaken | None = None) -> Any:
            with self._saving(request) as transaction:
                transaction.is_form = request.method == "POST"
                transaction.shows_form = object_id is not None
                transaction.taken = taken
                return view()

        try:
            return show()
        except KeyTaken as taken:  # since the form was validated
            return show(taken)

    def _answer(self, request: Any, object_id: str) -> HttpResponse:
        obj = self._named_row(request, object_id)
        if not self.has_change_permission(request, obj):
            raise PermissionDenied
        if obj is None:
            raise Http404
        return answer(request, obj, using=self.edit_using, conflict=self.edit_conflict)

    def _named_row(self, request: Any, object_id: str) -> Any:
        """Return the row that a path names: a pop-up may name it by another unique field."""
        field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
        if field and not self.to_field_allowed(request, field):
            raise DisallowedModelAdminToField(f"The field {field} cannot be referenced.")
        return self.get_object(request, unquote(object_id), field)

    def get_object(self, request: Any, object_id: Any, from_field: Any = None) -> Any:
        """Return a row, and note who has it open where its change form is about to be shown."""
        obj = super().get_object(request, object_id, from_field)
        transaction = transaction_of(request)
        if transaction.shows_form and obj is not None and request.method == "GET":
            transaction.shows_form = False
            if self.has_change_permission(request, obj):
                self._show_presence(request, obj)
        return obj

    def _show_presence(self, request: Any, obj: Any) -> None:
        page = PresencePage(request, obj, using=self.edit_using, conflict=self.edit_conflict)
        request._redlock_presence, transaction_of(request).page = page, page.page

    def _editors_of(self, request: Any, rows: Sequence[models.Model]) -> Any:
        """Return the rows that others keep from being changed; those of inlines are not asked."""
        own = [row for row in rows if isinstance(row, self.model)]
        return other_editors(request, own, using=self.edit_using)

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user may change the row; not on a page that is read only."""
        page = getattr(request, "_redlock_presence", None)
        return not (page and page.is_read_only) and super().has_change_permission(request, obj)

    def render_change_form(
        self, request: Any, context: Any, add: bool = False, change: bool = False,
        form_url: str = "", obj: Any = None,
    ) -> Any:  # fmt: skip
        """Return the change form, which shows who else has the row open."""
        response = super().render_change_form(request, context, add, change, form_url, obj)
        if obj is not None and request.method == "POST":  # the form was refused
            self._show_presence(request, obj)
        if obj is not None and context.get("action_form"):  # since Django 6.1
            add_inputs(response, [rows_input([obj], self.edit_ignore)])
        if page := getattr(request, "_redlock_presence", None):
            page.add_to(response, f"{self.opts.model_name}_form")
        return response

    def _get_obj_does_not_exist_redirect(self, request: Any, opts: Any, object_id: str) -> Any:
        """Answer a form whose row has been deleted: keep what was entered, for a new row."""
        transaction = transaction_of(request)
        if not transaction.is_form or not self.has_add_permission(request):
            return super()._get_obj_does_not_exist_redirect(request, opts, object_id)  # type: ignore[misc]
        transaction.is_form, transaction.is_deleted = False, True
        request.POST = request.POST.copy()
        # Then Django treats the rows of inlines as new ones.
        request.POST["_saveasnew"] = "1"
        request.POST.update({k: "0" for k in request.POST if k.endswith("-INITIAL_FORMS")})
        name = f"admin:{opts.app_label}_{opts.model_name}_add"
        shown = {"show_save": True, "show_save_and_add_another": False, "show_delete": False}
        return super().changeform_view(
            request, None, reverse(name, current_app=self.admin_site.name), shown
        )

    @method_decorator(sensitive_post_parameters())
    def user_change_password(self, request: Any, id: str, form_url: str = "") -> Any:  # noqa: A002 - Django's word
        """Show or save the form of a new password, of a UserAdmin."""
        view: Any = super()
        show = partial(view.user_change_password, request, id, form_url)
        with self._saving(request):
            return change_password(self, request, self.get_object(request, unquote(id)), show)

    # Views of plug-ins, see plugins.py.

    def revision_view(
        self, request: Any, object_id: str, version_id: str, extra_context: Any = None
    ) -> Any:
        """Show or save a form of django-reversion, for which it first reverts its rows."""
        view: Any = super()
        show = partial(view.revision_view, request, object_id, version_id, extra_context)
        with self._saving(request):
            return plugins.revert(self, request, unquote(object_id), version_id, show)

    def recover_view(self, request: Any, version_id: str, extra_context: Any = None) -> Any:
        """Show or save a form of django-reversion that makes a deleted row again."""
        view: Any = super()
        show = partial(view.recover_view, request, version_id, extra_context)
        with self._saving(request):
            return plugins.recover(self, request, version_id, show)

    def history_form_view(
        self, request: Any, object_id: str, version_id: str, extra_context: Any = None
    ) -> Any:
        """Show or save a form of django-simple-history, which has the values of an old version."""
        view: Any = super()
        show = partial(view.history_form_view, request, object_id, version_id, extra_context)
        with self._saving(request):
            return plugins.show_old_version(self, request, unquote(object_id), show)

    def get_changelist_instance(self, request: Any) -> Any:
        """Return the list; its first page if the page that was sent does not exist any more.

        Django would redirect to a list without what was entered.
        """
        try:
            return super().get_changelist_instance(request)
        except IncorrectLookupParameters:
            if request.method != "POST" or PAGE_VAR not in request.GET:
                raise
            request.GET = request.GET.copy()
            del request.GET[PAGE_VAR]
            return super().get_changelist_instance(request)

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show the rows, save those of `list_editable`, or run an action."""
        with self._saving(request):
            if request.method == "POST" and "_save" in request.POST:
                deleted = drop_deleted(request, self.get_queryset(request))
                if deleted:
                    text = f"Rows that were deleted after you opened this page: {deleted}."
                    self.message_user(request, text, messages.WARNING)
            response = super().changelist_view(request, extra_context)
            page = (getattr(response, "context_data", None) or {}).get("cl")
            if page is not None:
                show_sent_rows(page)
                if "action_checkbox" in page.list_display:
                    add_inputs(response, [rows_input(page.result_list, self.edit_ignore)])
            return response

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Ask before a row is deleted, and delete it unless it has changed since."""
        with self._saving(request):
            if request.method != "POST":
                return super().delete_view(request, object_id, extra_context)
            try:
                obj = self._named_row(request, object_id)
                if obj is not None and self.has_delete_permission(request, obj):
                    compare_rows(request, self.model, [obj], self.edit_ignore)
                return super().delete_view(request, object_id, extra_context)
            except NotAsShown as changed:
                self.message_user(request, str(changed), messages.ERROR)
                return HttpResponseRedirect(request.get_full_path())

    def render_delete_form(self, request: Any, context: Any) -> Any:
        """Return the page that asks before a row is deleted; it carries the row's version."""
        response = super().render_delete_form(request, context)
        add_inputs(
            response, [rows_input([context["object"]], self.edit_ignore), related_input(request)]
        )
        return response

    def get_deleted_objects(self, objs: Any, request: Any) -> Any:
        """Return what would be deleted with these rows; it must be what was shown."""
        found = super().get_deleted_objects(objs, request)
        compare_deletion(request, found[0])
        return found

    # Actions.

    def get_actions(self, request: Any, action_location: Any = None) -> Any:
        """Return the actions, which refuse rows that have changed since they were shown.

        Since Django 6.1, `action_location` may be the change form.
        """
        where = {} if action_location is None else {"action_location": action_location}
        actions: dict[str, Any] = super().get_actions(request, **where)
        return {
            name: action if name in self.edit_reading_actions else compared_action(action)
            for name, action in actions.items()
        }
