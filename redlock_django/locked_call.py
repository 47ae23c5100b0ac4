"""One call of a view under its lock, in both colours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse

from redlock_django.exceptions import InvalidRedlock, RedlockError, ResourceLocked
from redlock_django.handler import locks
from redlock_django.handover import Handover, guard_stream, on_close
from redlock_django.locking import Lock, lock
from redlock_django.resources import Template
from redlock_django.responses import ANSWERED, aanswer, answer
from redlock_django.transactions import (
    TakenOver,
    check_blocks,
    open_blocks,
    transactions_of,
    view_name,
)

AnyStack = ExitStack | AsyncExitStack
OnLocked = Callable[[HttpRequest, ResourceLocked], Any]


@dataclass(frozen=True, kw_only=True)
class LockTerms:
    """What one `lock_resource(...)` was told, checked."""

    templates: tuple[Template, ...]
    using: str
    ttl: float | None
    wait: float | None
    methods: frozenset[str] | None
    status: int | None
    on_locked: OnLocked | None

    def apply_to(self, request: HttpRequest) -> bool:
        """Whether requests of this method are locked."""
        return self.methods is None or request.method in self.methods

    def lock(self, request: HttpRequest, names: list[str]) -> Lock:
        """Give the lock on these resources, not taken yet."""
        self.check()
        return lock(
            *dict.fromkeys(names),  # two templates may name one resource
            using=self.using,
            ttl=self.ttl,
            wait=self.wait,
            holder={"path": request.path},
        )

    def check(self) -> None:
        """Raise InvalidRedlock where the alias is not there, or cannot keep such a lock."""
        options = locks[self.using].options
        try:
            if self.ttl is not None:
                options.check_ttl(self.ttl)
        except ValueError as error:
            raise InvalidRedlock(f"lock_resource(using={self.using!r}): {error}") from None

    def own_answer(self, request: HttpRequest, error: RedlockError) -> Any:
        """Give what the site itself answers to a held lock, or None."""
        if self.on_locked is None or not isinstance(error, ResourceLocked):
            return None
        return self.on_locked(request, error)

    def status_for(self, error: RedlockError) -> int | None:
        """Give the status of the answer to a held lock."""
        if not isinstance(error, ResourceLocked):
            return None
        return self.status or locks[self.using].options.status

    def missing(self, kwargs: Collection[str]) -> list[tuple[str, str]]:
        """Give the URL kwargs that templates need beyond these, each with its template."""
        return [(n, t.text) for t in self.templates for n in sorted(t.names - set(kwargs))]


class Call(NamedTuple):
    """A call of a view, with the request found in it.

    `owner` is the instance whose method the view is, or None; `marker` is by what Django left
    the transactions to us, if it did; `wrapped` is a framework's request around Django's.
    """

    view: Callable[..., Any]
    terms: LockTerms
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    request: Any
    owner: Any
    marker: TakenOver | None
    wrapped: bool

    @property
    def is_async(self) -> bool:
        """Whether the view is a method of an async class, whose `dispatch` is no coroutine."""
        return getattr(self.owner, "view_is_async", False) is True

    def check_kwargs(self) -> None:
        for name, template in self.terms.missing(self.kwargs):
            raise InvalidRedlock(
                f"{view_name(self.view)}: template {template!r} needs the URL kwarg {name!r}; "
                f"the URL gives: {', '.join(map(repr, self.kwargs)) or 'none'}"
            )

    def renders(self, response: Any) -> bool:
        # A framework finishes the responses of its own views only after they have returned.
        return not self.wrapped and callable(getattr(response, "render", None))

    def finished(self, response: Any) -> Any:
        """Render a sync view's response while the lock is held and the transaction open."""
        if self.renders(response):
            return response.render()
        # A class of such a framework may know how to do it earlier.
        finish = getattr(self.owner, "finish_under_lock", None)
        return response if finish is None else finish(self.request, response)

    @property
    def handover(self) -> Handover | None:
        """Where the lock goes if it has to outlive the view."""
        return Handover.of(getattr(self.request, "_request", self.request))

    def run(self) -> Any:
        """Call a sync view under its lock and return its response, or the answer to an error."""
        view, terms, request, marker = self.view, self.terms, self.request, self.marker
        if not terms.apply_to(request):
            with transactions_of(marker, durable=False):
                return view(*self.args, **self.kwargs)
        blocks = open_blocks()
        inside = bool(blocks)
        handover = self.handover
        check_blocks(view, blocks, kept=handover is not None)
        self.check_kwargs()
        try:
            names = [template.render(request, self.kwargs) for template in terms.templates]
            with ExitStack() as freeing:
                held = freeing.enter_context(terms.lock(request, names))
                if handover is not None and (inside or self.wrapped):
                    # At once: whatever happens now, somebody else's transaction ends first.
                    self._hand_over(held, handover, freeing)
                with transactions_of(None if inside else marker, durable=True) as guarded:
                    response = view(*self.args, **self.kwargs)
                    response = self.finished(response)
                    # What is committed cannot be taken back by refusing a finished response.
                    if guarded or inside:
                        held.ensure_held()
                self._keep_stream(response, held, handover, freeing)
            return response
        except ANSWERED as error:
            own = terms.own_answer(request, error)
            if own is None:
                reply = getattr(self.owner, "answer_lock_error", answer)
                own = reply(request, error, status=terms.status_for(error))
            if handover is None or not inside:
                return own
            # The block has yet to be rolled back, and only an exception does that.
            handover.prepare(error, own)
            raise

    async def arun(self) -> Any:
        """Do as `run` does with an async view."""
        view, terms, request = self.view, self.terms, self.request
        if self.marker is not None and self.marker.atomic_aliases():
            # A method's mark reaches the class's view, and there it hides Django's own error.
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
        if not terms.apply_to(request):
            return await view(*self.args, **self.kwargs)
        handover = self.handover
        self.check_kwargs()
        try:
            names = [await template.arender(request, self.kwargs) for template in terms.templates]
            async with AsyncExitStack() as freeing:
                held = await freeing.enter_async_context(terms.lock(request, names))
                response = await view(*self.args, **self.kwargs)
                if self.renders(response):
                    response = await sync_to_async(response.render)()
                if handover is not None and self.wrapped:
                    self._hand_over(held, handover, freeing)
                self._keep_stream(response, held, handover, freeing)
            return response
        except ANSWERED as error:
            own = terms.own_answer(request, error)
            if inspect.isawaitable(own):
                own = await own
            if own is None:
                own = await aanswer(request, error, status=terms.status_for(error))
            return own

    def _keep_stream(
        self, response: Any, held: Lock, handover: Handover | None, freeing: AnyStack
    ) -> None:
        if not isinstance(response, StreamingHttpResponse):
            return
        guard_stream(response, held)
        if handover is not None:
            self._hand_over(held, handover, freeing)
        else:
            held.detach()
            on_close(response, held.release)
            freeing.pop_all()

    def _hand_over(self, held: Lock, handover: Handover, freeing: AnyStack) -> None:
        if held not in handover.locks:
            held.detach()
            handover.locks.append(held)
            freeing.pop_all()
