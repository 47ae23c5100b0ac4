"""`IdempotentMixin`: class-based views that are idempotent by a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import classonlymethod

from redlock_django.idempotency.decorators import idempotent
from redlock_django.web.transactions import transaction_marker

if TYPE_CHECKING:
    from django.views.generic import View
else:
    View = object


class IdempotentMixin(View):
    """A class-based view whose requests may be sent again, and take effect once.

    `idempotent_options` are the arguments of `idempotent`. Put it behind the mixins that check a
    user's rights (`LoginRequiredMixin`, say), which then do so before a replay too; before or
    behind `LockResourceMixin` is the same. Raises InvalidRedlock at the first request where
    such a mixin stands behind it.
    """

    idempotent_options: Mapping[str, Any] = {}

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Give the view function, which leaves the transaction to us."""
        view: Any = super().as_view(**initkwargs)
        if not iscoroutinefunction(view):
            view._non_atomic_requests = transaction_marker(view)
        view.records_requests = True
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer from the record, or run what comes next."""
        return idempotent(**self.idempotent_options)(super().dispatch)(request, *args, **kwargs)

    dispatch.records_requests = True  # type: ignore[attr-defined]
