"""Plain HTML forms: a hidden field whose key makes a double click one submission.

In any template, for a request that has come through `LockMiddleware` or to an idempotent view:
`<form method="post">{% csrf_token %}{{ request.idempotency_field }}`. In a form class:
`class PaymentForm(IdempotentFormMixin, forms.ModelForm)`, and nothing in the template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django import forms
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.idempotency.settings import settings_of

if TYPE_CHECKING:
    _Form = forms.BaseForm
else:
    _Form = object


class HiddenKey:
    """What `{{ request.idempotency_field }}` is: a hidden input, with a new key for each form."""

    def __init__(self, using: str = "default") -> None:
        self._using = using

    def __str__(self) -> SafeString:
        name = settings_of(self._using).field
        return format_html('<input type="hidden" name="{}" value="{}">', name, uuid4())

    __html__ = __str__


def offer_field(request: HttpRequest, using: str = "default") -> None:
    """Let templates write `{{ request.idempotency_field }}`."""
    request.idempotency_field = HiddenKey(using)  # type: ignore[attr-defined]


class IdempotentFormMixin(_Form):
    """A form that has a hidden field with an idempotency key; put it before the form class.

    The key is no part of `cleaned_data`. A form that is shown again, because of an error, has a
    new key: what is sent then is another submission. `idempotency_using` is the alias of REDLOCK
    that says what the field is called.
    """

    idempotency_using = "default"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._key_field = settings_of(self.idempotency_using).field
        self.fields[self._key_field] = _KeyField()

    def add_prefix(self, field_name: str) -> str:
        """Leave the key's field its name: one request has one key, however many forms."""
        return field_name if field_name == self._key_field else super().add_prefix(field_name)

    def full_clean(self) -> None:
        """Clean as ever; the key is not for the form's own code."""
        super().full_clean()
        if hasattr(self, "cleaned_data"):
            self.cleaned_data.pop(self._key_field, None)


class _NewKey(forms.HiddenInput):
    def format_value(self, value: Any) -> str:
        return str(uuid4())  # never the one that was sent


class _KeyField(forms.CharField):
    widget = _NewKey

    def __init__(self) -> None:
        super().__init__(required=False)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False  # a form in which nothing else was written is still an empty one
