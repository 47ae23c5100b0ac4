"""Checks of EditLockMixin at start: it is refused where it could not compare rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin import ModelAdmin
from django.core.checks import CheckMessage, Error
from django.core.exceptions import FieldDoesNotExist
from django.forms import ModelForm

from redlock_django.edit_locks.options import check_alias, check_options, overrides
from redlock_django.exceptions import InvalidRedlock

ERROR = "redlock_django.E060"

HOOKS = (
    "changeform_view",
    "changelist_view",
    "construct_change_message",
    "delete_view",
    "get_actions",
    "get_changelist_formset",
    "get_deleted_objects",
    "get_form",
    "get_formsets_with_inlines",
    "history_form_view",
    "recover_view",
    "render_delete_form",
    "revision_view",
    "user_change_password",
)
"""The methods by which the mixin compares rows."""

READING_HOOKS = ("get_object", "has_change_permission", "render_change_form")
"""The methods by which a page is read only while another editor has the row open."""

BUTTONS = ("actions_detail", "actions_list", "actions_row")
"""Where django-unfold lists actions that run without a form, so without the version of a row."""


def check_class(cls: type[Any], mixin: type[Any]) -> None:
    """Raise InvalidRedlock for a class whose bases or options are wrong."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    bases = cls.__mro__
    if ModelAdmin in bases and bases.index(ModelAdmin) < bases.index(mixin):
        raise InvalidRedlock(
            f"{name}: EditLockMixin comes after ModelAdmin, so nothing is compared. Write class "
            f"{cls.__name__}(EditLockMixin, admin.ModelAdmin)"
        )
    check_options(cls, mixin)


def check_admin(admin: Any, mixin: type[Any]) -> Iterator[CheckMessage]:
    """Yield errors for what bypasses the comparison of a registered ModelAdmin."""
    name = type(admin).__qualname__
    try:
        check_alias(name, admin.edit_using)
    except InvalidRedlock as error:
        yield _error(admin, str(error), "Write the name of an alias.")
    # A form with an __init__() of its own may add fields in it.
    ignored = admin.edit_ignore if admin.form.__init__ is ModelForm.__init__ else ()
    for field in {*ignored} - {*admin.form.base_fields}:
        try:
            admin.model._meta.get_field(field)
        except FieldDoesNotExist:
            yield _error(
                admin,
                f"{name}.edit_ignore names {field!r}, which is not a field of "
                f"{admin.model._meta.label}",
                "Write the name of a field, or remove it.",
            )
    hooks = HOOKS + (READING_HOOKS if admin.edit_conflict == "refuse" else ())
    for base, hook in overrides(type(admin), mixin, hooks):
        yield _error(
            admin,
            f"{base.__qualname__}.{hook}() does not call super(), which EditLockMixin needs",
            f"Call super().{hook}(...) in it.",
        )
    for inline in admin.inlines:
        if getattr(inline, "inlines", ()):
            yield _error(
                admin,
                f"{inline.__qualname__} has inlines of its own, whose rows are not compared",
                "Give that model a ModelAdmin with EditLockMixin, and remove the inner inlines.",
            )
    for option in BUTTONS:
        for action in getattr(admin, option, None) or ():
            if action not in admin.edit_reading_actions:
                yield _error(
                    admin,
                    f"{name}.{option} has the action {action!r}, which runs without the version of "
                    "a row",
                    "Move it to actions or actions_submit_line, or list it in "
                    "edit_reading_actions if it changes nothing.",
                )


def _error(admin: Any, message: str, hint: str) -> CheckMessage:
    return Error(message, hint=hint, obj=type(admin), id=ERROR)
