"""`EditLockViewMixin`: an UpdateView that saves nothing over what its editor has not seen."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction
from django.http import HttpResponseRedirect
from django.utils.decorators import classonlymethod
from django.views.generic import UpdateView, View

from redlock_django.edit_locks.forms import compared_form, locked_row
from redlock_django.edit_locks.inserted_rows import KeyTaken
from redlock_django.edit_locks.options import check_alias, check_options, check_values, overrides
from redlock_django.edit_locks.presence_pages import (
    ACTION,
    PresencePage,
    answer,
    other_editors,
)
from redlock_django.edit_locks.saving_transaction import SavingTransaction
from redlock_django.exceptions import InvalidRedlock

if TYPE_CHECKING:
    _UpdateView = UpdateView[Any, Any]
else:
    _UpdateView = object


class EditLockViewMixin(_UpdateView):
    """An UpdateView that refuses to save a row that has changed since it was shown.

    List it before UpdateView. A row that has changed is an error of the form, which shows both
    versions. The template must render the first visible field of the form (the first field if all
    are hidden): the version is beside it. The options are those of EditLockMixin. Raises
    InvalidRedlock when the class is created with a wrong value, or where its row could not be
    compared.
    """

    edit_conflict: str = "warn"
    edit_using: str = "default"
    edit_ignore: Collection[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name, bases = f"{cls.__module__}.{cls.__qualname__}", cls.__mro__
        if View in bases and bases.index(View) < bases.index(EditLockViewMixin):
            raise InvalidRedlock(
                f"{name}: EditLockViewMixin comes after the view, so nothing is compared. Write "
                f"class {cls.__name__}(EditLockViewMixin, UpdateView)"
            )
        check_options(cls, EditLockViewMixin)
        for _, hook in overrides(cls, EditLockViewMixin, ("get_form", "post")):
            raise InvalidRedlock(
                f"{name}: {hook}() does not call super(), so the row is not compared. Call "
                f"super().{hook}(...) in it"
            )
        handlers = [getattr(cls, one, None) for one in ("get", "post", "put", "form_valid")]
        if any(map(iscoroutinefunction, handlers)):
            raise InvalidRedlock(
                f"{name}: EditLockViewMixin works in sync views, because a transaction belongs to "
                "a thread. Write def, not async def, in its methods"
            )

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function. Raises InvalidRedlock for a view that updates no row."""
        if not issubclass(cls, UpdateView):
            raise InvalidRedlock(
                f"{cls.__qualname__} is not an UpdateView. Write class {cls.__name__}"
                "(EditLockViewMixin, UpdateView)"
            )
        model = initkwargs.get("model", cls.model)
        if model is not None and (model._meta.abstract or model._meta.pk is None):
            raise InvalidRedlock(
                f"{cls.__qualname__}: {model._meta.label} has no primary key, by which its row "
                "could be found again. Add a field with primary_key=True"
            )
        check_values(cls.__qualname__, initkwargs)
        if initkwargs.get("edit_conflict", cls.edit_conflict) == "refuse":
            for _, hook in overrides(cls, EditLockViewMixin, ("render_to_response",)):
                raise InvalidRedlock(
                    f"{cls.__qualname__}: {hook}() does not call super(), so the page is not read "
                    f"only while another editor has it open. Call super().{hook}(...) in it"
                )
        check_alias(cls.__qualname__, initkwargs.get("edit_using", cls.edit_using))
        form = initkwargs.get("form_class", cls.form_class)
        if form is not None:
            compared_form(form)
        return super().as_view(**initkwargs)

    @cached_property
    def _edit_transaction(self) -> SavingTransaction:
        """The transactions in which the row is compared and saved."""
        saving = SavingTransaction()
        if self.edit_conflict == "refuse":
            using = self.edit_using
            saving.editors_of = partial(other_editors, self.request, using=using)
        return saving

    def get_form(self, form_class: Any = None) -> Any:
        """Return the form, which compares the row."""
        if self._edit_transaction.is_active and self.object is not None:
            # Before the form reads what it shows from other tables.
            locked_row(self.object, self._edit_transaction)
        compared = compared_form(
            form_class or self.get_form_class(),
            edit_transaction=self._edit_transaction,
            edit_ignore=frozenset(self.edit_ignore),
        )
        return super().get_form(compared)

    def post(self, *args: Any, **kwargs: Any) -> Any:
        """Save the row, in the transaction in which it is compared."""
        if ACTION in self.request.POST:
            row, using = self.get_object(), self.edit_using
            return answer(self.request, row, using=using, conflict=self.edit_conflict)
        try:
            with self._edit_transaction:
                return super().post(*args, **kwargs)
        except KeyTaken as taken:  # since the form was validated
            self._edit_transaction.taken, using = taken, taken.using
            with self._edit_transaction:
                response = super().post(*args, **kwargs)
            if connections[using].in_atomic_block:  # the view may have saved more, before
                transaction.set_rollback(True, using=using)
            return response

    def render_to_response(self, context: Any, **response_kwargs: Any) -> Any:
        """Return the page, which shows who else has the row open."""
        if getattr(context["form"], "edit_refused", "") == "read only":
            return HttpResponseRedirect(self.request.get_full_path())  # it shows the row again
        page = PresencePage(
            self.request, self.object, using=self.edit_using, conflict=self.edit_conflict
        )
        self._edit_transaction.page = page.page
        if page.is_read_only:
            context["form"].edit_is_read_only = True
            for field in context["form"].fields.values():
                field.disabled = True
        response = super().render_to_response(context, **response_kwargs)
        page.add_to(response)
        return response
