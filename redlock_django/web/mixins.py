"""`LockResourceMixin`: run a class-based view under a lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import classonlymethod

from redlock_django.conf.settings import check_installed_if_ready
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.names import HASH_MARK
from redlock_django.web.lock_resource import lock_resource
from redlock_django.web.misplaced_locks import two_locks_error
from redlock_django.web.name_templates import Computed, template_of
from redlock_django.web.options import VALUES
from redlock_django.web.view_kinds import transaction_marker, view_name

_NONE: Mapping[str, Any] = MappingProxyType({})

if TYPE_CHECKING:
    from django.views.generic import View
else:
    View = object


class LockResourceMixin(View):
    """A class-based view that runs only while it holds the lock named by `lock_key`.

    `lock_key` is a template or a list of templates; the other attributes are the arguments of
    `lock_resource`. Base classes before the mixin run before the lock is acquired, for example
    `LoginRequiredMixin`. Base classes after it run under the lock and inside the transaction.
    Raises InvalidRedlock when the class is created with an invalid template.
    """

    lock_key: str | Sequence[str] = ()
    lock_using: str = "default"
    lock_ttl: float | timedelta | None = None
    lock_wait: float | timedelta | None = None
    lock_methods: Collection[str] | None = None
    lock_status: int | None = None
    lock_on_disconnect: str | None = None
    lock_limit: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        from django.views.generic import View as DjangoView

        bases = cls.__mro__
        if DjangoView in bases and bases.index(DjangoView) < bases.index(LockResourceMixin):
            raise InvalidRedlock(
                f"{cls.__module__}.{cls.__qualname__}: LockResourceMixin must come before View "
                "in the base classes, or nothing is locked"
            )
        if cls.lock_key:
            _decorator(cls, cls.lock_key)
            for text in [cls.lock_key] if isinstance(cls.lock_key, str) else cls.lock_key:
                if HASH_MARK not in text:  # a name that resource() has shortened
                    template_of(text)

    def get_lock_key(self) -> str | Sequence[str]:
        """Return the names to lock for this request, made by `resource()`.

        `self.request`, `self.args` and `self.kwargs` are set. The default is `lock_key`.
        Only the strings of `lock_key` may be templates. A string that contains a value of the
        client, such as an f-string, must not be read as one, and a ":" in the value must not make
        it the name of another resource.
        """
        return self.lock_key

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function, for which Django opens no transaction."""
        check_installed_if_ready()
        view: Any = super().as_view(**initkwargs)
        if not iscoroutinefunction(view):
            if hasattr(view, "lock_options"):
                raise two_locks_error(view)
            # Django reads it from the outermost function; a subclass may override dispatch.
            view._non_atomic_requests = transaction_marker(view)
        keys = initkwargs.get("lock_key", cls.lock_key)
        if not keys and cls.get_lock_key is LockResourceMixin.get_lock_key:
            raise InvalidRedlock(
                f"{view_name(cls)}: nothing says what to lock. Write lock_key = 'order:<int:pk>' "
                "in the class, or override get_lock_key()"
            )
        view.lock_options = _decorator(cls, keys or [cls.get_lock_key], initkwargs).options
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the next dispatch under the lock."""
        keys = self.get_lock_key()
        lock = _decorator(self, keys if keys is self.lock_key else _names(self, keys))
        return lock(super().dispatch)(request, *args, **kwargs)

    dispatch.opens_transaction = True  # type: ignore[attr-defined]


def _names(view: Any, keys: str | Sequence[str]) -> str | Sequence[str]:
    """Return names from `get_lock_key()`; raise InvalidRedlock for a template among them."""
    for name in [keys] if isinstance(keys, str) else keys:
        if "<" in str(name):
            raise InvalidRedlock(
                f"{view_name(type(view))}: get_lock_key() must return names, and '<' is in one. "
                "Write return resource('order:<int:pk>', pk=...), not an f-string or a template"
            )
    return keys


def _decorator(
    view: Any, keys: str | Sequence[str | Computed], initkwargs: Mapping[str, Any] = _NONE
) -> Any:
    """Return the decorator for the attributes of a view or a class; `initkwargs` replace them."""
    if not isinstance(keys, Sequence):
        raise InvalidRedlock(
            f"{view_name(view)}: lock_key must be a template or a list of templates, "
            f"got {type(keys).__name__}"
        )
    arguments = {name: getattr(view, f"lock_{name}") for name in ("using", *VALUES)}
    arguments |= {name: initkwargs.get(f"lock_{name}", value) for name, value in arguments.items()}
    return lock_resource(*map(_template, [keys] if isinstance(keys, str) else keys), **arguments)


def _template(key: str | Computed) -> str | Computed:
    if not isinstance(key, str) or "<" in key:
        return key

    # A name that resource() has hashed is not a valid template.
    def constant(request: HttpRequest, **kwargs: Any) -> str:
        return key

    constant.__qualname__ = key  # what messages show
    return constant
