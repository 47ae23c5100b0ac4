"""HTML forms: a hidden field with a key, so that a double click is one submission.

In a template, for a request that came through `LockMiddleware` or is sent to an idempotent view:
`<form method="post">{% csrf_token %}{{ request.idempotency_field }}`. In a form class:
`class PaymentForm(IdempotentFormMixin, forms.ModelForm)`; its template needs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django import forms

from redlock_django.idempotency.settings import settings_of
from redlock_django.web.request_state import mark_single_use

if TYPE_CHECKING:
    _Form = forms.BaseForm
else:
    _Form = object


class IdempotentFormMixin(_Form):
    """A form with a hidden field for an idempotency key; list it before the form class.

    The key is not in `cleaned_data`. A form that is shown again, because of an error, has a new
    key: sending it is another submission. `idempotency_using` is the alias of REDLOCK whose
    settings name the field.
    """

    idempotency_using = "default"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._key_field = settings_of(self.idempotency_using).field
        self.fields[self._key_field] = _KeyField()

    def add_prefix(self, field_name: str) -> str:
        """Return the field's name, without a prefix for the key: a request has only one key."""
        return field_name if field_name == self._key_field else super().add_prefix(field_name)

    def full_clean(self) -> None:
        """Clean the form, and remove the key from `cleaned_data`."""
        super().full_clean()
        if hasattr(self, "cleaned_data"):
            self.cleaned_data.pop(self._key_field, None)


class _NewKey(forms.HiddenInput):
    def __init__(self) -> None:
        super().__init__(attrs={"autocomplete": "off"})

    def format_value(self, value: Any) -> str:
        mark_single_use()
        return str(uuid4())  # never the key that was sent


class _KeyField(forms.CharField):
    widget = _NewKey

    def __init__(self) -> None:
        super().__init__(required=False)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False  # a form whose other fields are empty still counts as empty
