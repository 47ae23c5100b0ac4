"""`IdempotentMixin`: class-based views that are idempotent by a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import classonlymethod

from redlock_django.idempotency.decorators import idempotent
from redlock_django.web.transactions import transaction_marker

if TYPE_CHECKING:
    from django.views.generic import View
else:
    View = object


class IdempotentMixin(View):
    """A class-based view whose requests may be sent again, and take effect once.

    `idempotent_options` are the arguments of `idempotent`. List the mixin after the mixins that
    check permissions, such as `LoginRequiredMixin`, so that they also run before a replay. It may
    come before or after `LockResourceMixin`. Raises InvalidRedlock at the first request if a mixin
    that checks permissions comes after it.
    """

    idempotent_options: Mapping[str, Any] = {}

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function, for which Django opens no transaction."""
        view: Any = super().as_view(**initkwargs)
        if not iscoroutinefunction(view):
            view._non_atomic_requests = transaction_marker(view)
        from django.views.generic import View as DjangoView

        # A lock around the view would not be held in `setup` and a `dispatch` in front of ours.
        is_direct = cls.dispatch is IdempotentMixin.dispatch and cls.setup is DjangoView.setup
        view.records_requests = view if is_direct else IdempotentMixin.dispatch
        given = initkwargs.get("idempotent_options", cls.idempotent_options)
        decorated: Any = idempotent(**given)(_no_view)
        view.idempotent_options = decorated.idempotent_options
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay the recorded response, or run the next dispatch."""
        return idempotent(**self.idempotent_options)(super().dispatch)(request, *args, **kwargs)

    dispatch.records_requests = dispatch  # type: ignore[attr-defined]


def _no_view(request: HttpRequest) -> None:
    """A view to decorate where only the options of the decorator are needed."""
