"""The parameters of `lock()` and `Lock`, stated once and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from redlock_django.backends.values import flag, minimum_hold
from redlock_django.engine.validity import with_drift
from redlock_django.exceptions import BadName, BadResource, InvalidRedlock
from redlock_django.locking.handler import LockService, locks
from redlock_django.locking.names import check_resource
from redlock_django.locking.thread_state import follow_patches

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LockParameters:
    """The arguments of `lock()`, which describes them.

    Raises BadName for a name that is not valid, BadResource for too many resources, ValueError for
    a bad duration, InvalidRedlock for wrong settings.
    """

    _resolved: tuple[LockService, float, float] | None = None
    _sorted: Callable[[Sequence[str]], Iterable[str]] = staticmethod(sorted)
    """All clients acquire resources in the same order: see `rounds.acquire`."""

    def __init__(
        self,
        *resources: str,
        using: str = "default",
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        renew: bool | None = None,
        reentrant: bool = False,
        until_commit: bool = True,
        min_hold: float | timedelta | None = None,
        holder: Mapping[str, str] | None = None,
    ) -> None:
        self.resources: tuple[str, ...]
        self._in_order: tuple[str, ...]
        try:
            if len(resources) == 1:  # as nearly always, and in half the time
                self.resources = self._in_order = (check_resource(resources[0]),)
            else:
                self.resources = tuple(map(check_resource, resources))
                self._in_order = tuple(self._sorted(self.resources))
        except BadResource as error:
            raise BadName(str(error), resource=error.resource) from None
        if len(resources) != 1:
            self._check_several(locks[using].backend.max_resources)
        self.using = using
        self._ttl = ttl
        self._wait = wait
        self._renew = renew
        self._reentrant = reentrant
        self._until_commit = until_commit
        if until_commit is not True:
            flag({"until_commit": until_commit}, "until_commit")
        self._min_hold = 0.0 if min_hold is None else minimum_hold(min_hold, ttl)
        if self._min_hold and not locks[using].backend.keeps_min_hold:
            raise InvalidRedlock(
                f"REDLOCK[{using!r}]: its BACKEND cannot hold a lock after its release, which "
                "min_hold needs. Leave min_hold out, or use another alias"
            )
        self._holder = dict(holder) if holder else {}
        self._resolve()  # a bad duration is an error here, not at the first acquire()

    def _check_several(self, most: int) -> None:
        if not 1 <= len(self.resources) <= most:
            raise BadResource(f"a lock needs 1 to {most} resources, got {len(self.resources)}")
        if len(set(self.resources)) < len(self.resources):
            raise BadResource("a resource is named twice in one lock", resource=self._names)

    def _resolve(self) -> tuple[LockService, float, float]:
        """Return the service of the alias, the TTL and the wait in seconds."""
        follow_patches()
        service = locks.services.get(self.using) or locks[self.using]  # a method call less
        if self._resolved is not None and self._resolved[0] is service:
            return self._resolved
        settings = service.settings
        ttl = settings.ttl if self._ttl is None else settings.check_ttl(self._ttl)
        wait = settings.wait if self._wait is None else settings.check_wait(self._wait)
        if self._min_hold and ttl < (least := with_drift(self._min_hold)):
            settings.store.check_ttl(least, "min_hold with drift")
            ttl = least
        if ttl > settings.max_hold:
            raise ValueError(
                f"ttl is {ttl:g} s and MAX_HOLD is {settings.max_hold:g} s: "
                "lower ttl or raise MAX_HOLD"
            )
        self._resolved = service, ttl, wait
        return self._resolved

    def set_wait(self, seconds: float) -> None:
        """Wait for `seconds` from the next acquisition on, which checks them."""
        self._wait, self._resolved = seconds, None

    @property
    def _names(self) -> str:
        return ", ".join(self.resources)


def parameters_of(cls: Callable[_P, _T]) -> Callable[[Callable[..., _T]], Callable[_P, _T]]:
    """Declare a function to have the parameters of a class, at run time and for type checkers."""

    def declare(function: Callable[..., _T]) -> Callable[_P, _T]:
        signature = inspect.signature(cls).replace(return_annotation=cls)
        declared: Any = function
        declared.__signature__ = signature
        return declared  # type: ignore[no-any-return]

    return declare
