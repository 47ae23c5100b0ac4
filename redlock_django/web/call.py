"""One call of a view under its lock, in both colours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse

from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.lock import Lock
from redlock_django.web.handover import Handover, guard_stream, on_close
from redlock_django.web.nesting import Nesting, dedupes
from redlock_django.web.options import LockOptions
from redlock_django.web.responses import ANSWERED, aanswer, answer
from redlock_django.web.transactions import (
    TakenOver,
    check_blocks,
    mark_seen,
    open_blocks,
    transactions_of,
    view_name,
)

AnyStack = ExitStack | AsyncExitStack


class Call(NamedTuple):
    """A call of a view, with the request found in it.

    `owner` is the instance whose method the view is, or None; `marker` is by what Django left
    the transactions to us, if it did; `wrapped` is a framework's request around Django's.
    """

    view: Callable[..., Any]
    options: LockOptions
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
        for name, template in self.options.missing(self.kwargs):
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

    @property
    def defers(self) -> bool:
        """Whether the lock is taken further in, where the request is deduplicated first."""
        if Nesting.of(self.request).deduping:
            return False
        handler = getattr(self.owner, str(self.request.method).lower(), None)
        return dedupes(self.view) or dedupes(handler)

    def run(self) -> Any:
        """Call a sync view under its lock and return its response, or the answer to an error."""
        view, options, request, marker = self.view, self.options, self.request, self.marker
        if self.defers:
            Nesting.of(request).defer(options)
            return view(*self.args, **self.kwargs)
        recorder = Nesting.of(request).take_recorder()
        locks_it = options.apply_to(request)
        if not locks_it and recorder is None:
            with transactions_of(marker, durable=False):
                return view(*self.args, **self.kwargs)
        blocks = open_blocks()
        inside = bool(blocks)
        handover = self.handover
        check_blocks(view, blocks, kept=handover is not None and recorder is None)
        try:
            with ExitStack() as freeing:
                held = freeing.enter_context(self._lock()) if locks_it else None
                if held is not None and handover is not None and (inside or self.wrapped):
                    # At once: whatever happens now, somebody else's transaction ends first.
                    self._hand_over(held, handover, freeing)
                with transactions_of(
                    None if inside else marker,
                    durable=True,
                    record=recorder.database if recorder is not None else None,
                ) as aliases:
                    if recorder is not None:
                        recorder.begin(aliases)
                    response = self.finished(view(*self.args, **self.kwargs))
                    if recorder is not None:
                        recorder.finish(response)
                    # What is committed cannot be taken back by refusing a finished response.
                    if held is not None and (aliases or inside):
                        held.ensure_held()
                if recorder is not None:
                    recorder.committed()
                if held is not None:
                    self._keep_stream(response, held, handover, freeing)
            return response
        except ANSWERED as error:
            own = options.own_answer(request, error)
            if own is None:
                reply = getattr(self.owner, "answer_lock_error", answer)
                own = reply(request, error, status=options.status_for(error))
            if handover is None or not inside:
                return own
            # The block has yet to be rolled back, and only an exception does that.
            handover.prepare(error, own)
            raise

    def _lock(self) -> Lock:
        self.check_kwargs()
        options, request = self.options, self.request
        names = [template.render(request, self.kwargs) for template in options.templates]
        return options.lock(request, names)

    async def arun(self) -> Any:
        """Do as `run` does with an async view."""
        view, options, request = self.view, self.options, self.request
        if self.defers:
            Nesting.of(request).defer(options)
            return await view(*self.args, **self.kwargs)
        self.check_no_transaction()
        recorder = Nesting.of(request).take_recorder()
        locks_it = options.apply_to(request)
        if not locks_it and recorder is None:
            return await view(*self.args, **self.kwargs)
        handover = self.handover
        try:
            async with AsyncExitStack() as freeing:
                held = await freeing.enter_async_context(await self._alock()) if locks_it else None
                if recorder is not None:
                    await recorder.abegin()
                response = await view(*self.args, **self.kwargs)
                if self.renders(response):
                    response = await sync_to_async(response.render)()
                if recorder is not None:
                    await recorder.afinish(response)
                if held is not None:
                    if handover is not None and self.wrapped:
                        self._hand_over(held, handover, freeing)
                    self._keep_stream(response, held, handover, freeing)
            return response
        except ANSWERED as error:
            own = options.own_answer(request, error)
            if inspect.isawaitable(own):
                own = await own
            if own is None:
                own = await aanswer(request, error, status=options.status_for(error))
            return own

    def check_no_transaction(self) -> None:
        """Raise Django's own error about ATOMIC_REQUESTS and async views."""
        if self.marker is not None and self.marker.atomic_aliases():
            # A method's mark reaches the class's view, and there it hides the error.
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")

    async def _alock(self) -> Lock:
        self.check_kwargs()
        options, request = self.options, self.request
        names = [await template.arender(request, self.kwargs) for template in options.templates]
        return options.lock(request, names)

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


def call_of(
    view: Callable[..., Any],
    options: LockOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    marker: TakenOver | None,
) -> Call:
    """Find the request by its type: the first argument of a function, the second of a method."""
    for index in reversed(range(len(args[:2]))):
        request = args[index]
        wrapped = isinstance(getattr(request, "_request", None), HttpRequest)
        if isinstance(request, HttpRequest) or wrapped:
            # method_decorator() binds the method before it is decorated.
            bound = getattr(getattr(view, "func", view), "__self__", None)
            owner = args[0] if index else bound
            seen = mark_seen(request, marker, owner)
            return Call(view, options, args, kwargs, request, owner, seen, wrapped)
    raise InvalidRedlock(
        f"{view_name(view)} was called without a request: it must be the first argument of a "
        "function, or the first after self of a method"
    )
