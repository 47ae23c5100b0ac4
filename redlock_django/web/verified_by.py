"""`@verified_by`: refuse a request whose sender has not signed it, before anything else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from redlock_django.conf.settings import check_installed_if_ready
from redlock_django.exceptions import IncompleteBody, InvalidRedlock, RedlockError, SignatureInvalid
from redlock_django.web.answers import Problem, aanswer, answer, gettext_noop, register_problem
from redlock_django.web.call import Call, DecoratedView
from redlock_django.web.options import no_lock
from redlock_django.web.request_values import read_body
from redlock_django.web.transactions import view_name
from redlock_django.web.view_kinds import is_async_class, resolve_annotations

View = TypeVar("View", bound=Callable[..., Any])

STATUSES = (400, 401, 403)
"""The HTTP statuses by which a request without a valid signature may be refused."""

register_problem(
    SignatureInvalid,
    Problem(
        status=403,
        code="signature-invalid",
        title=gettext_noop("Signature is invalid"),
        detail=gettext_noop(
            "The signature of the request is missing, wrong or too old. Nothing was changed."
        ),
        retryable=False,
    ),
)


def verified_by(check: Callable[..., Any], /, *, status: int = 403) -> Callable[[View], View]:
    """Return a decorator that runs a view only if `check` returns True.

    `check(request, **kwargs)` gets Django's request and the arguments of the URL, and returns
    whether the sender has signed the request. It may read the body, and the view can read it again.
    For an async view it may be a coroutine function. `status` is that of the refusal: 400, 401 or
    403. Put the decorator above `@idempotent` and `@lock_resource`: a request that nobody has
    signed must neither use up the id of an event nor hold a lock.

    Raises InvalidRedlock at import time for invalid arguments.
    """
    given: Any = check
    if inspect.isclass(given) or not callable(given):
        raise InvalidRedlock(f"verified_by() needs a function (request, **kwargs), got {check!r}")
    if status not in STATUSES:
        raise InvalidRedlock(f"verified_by(): status must be 400, 401 or 403, got {status!r}")

    def decorate(view: View, *args: Any, **kwargs: Any) -> View:
        target: Any = view
        if isinstance(target, HttpRequest) or args or kwargs:
            raise InvalidRedlock(
                "@verified_by needs the function that checks the signature, and "
                f"{view_name(check)} is decorated without one: write "
                "@verified_by(signature_of_the_provider)"
            )
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"verified_by() needs a view function, got {view!r}. For a class, use "
                '@method_decorator(verified_by(...), name="dispatch"), or decorate the result of '
                "its as_view()"
            )
        wrap = _async_view if iscoroutinefunction(view) else _sync_view
        verified = wrap(view, check, status)
        check_installed_if_ready()
        resolve_annotations(verified, view)
        verified.verified_by = check  # `is_verified` and the system checks read it
        return cast("View", verified)

    return decorate


def _sync_view(view: Callable[..., Any], check: Callable[..., Any], status: int) -> Any:
    decorated = DecoratedView(view, no_lock("default"))

    @functools.wraps(view)
    def verified(*args: Any, **kwargs: Any) -> Any:
        call = decorated.call(args, kwargs)
        if is_async_class(call.owner.__class__):
            return _arun(call, check, status)
        try:
            _read(call)
            _judge(check, _result(call, check), status)
        except (SignatureInvalid, IncompleteBody) as error:
            reply = getattr(call.owner, "answer_lock_error", answer)
            return _challenge(reply(call.request, error), error)
        return view(*args, **kwargs)

    return verified


def _async_view(view: Callable[..., Any], check: Callable[..., Any], status: int) -> Any:
    decorated = DecoratedView(view, no_lock("default"))

    @functools.wraps(view)
    async def verified(*args: Any, **kwargs: Any) -> Any:
        return await _arun(decorated.call(args, kwargs), check, status)

    return verified


async def _arun(call: Call, check: Callable[..., Any], status: int) -> Any:
    """Check the request of an async view, and run the view or return the refusal."""
    try:
        _read(call)
        result = _result(call, check)
        _judge(check, await result if inspect.isawaitable(result) else result, status)
    except (SignatureInvalid, IncompleteBody) as error:
        return _challenge(await aanswer(call.request, error), error)
    return await call.view(*call.args, **call.kwargs)


def _read(call: Call) -> None:
    """Read the body, so that half of one is refused as what it is."""
    read_body(call.request)


def _result(call: Call, check: Callable[..., Any]) -> Any:
    # Django's request in each framework, so that one function serves all of them.
    return check(getattr(call.request, "_request", call.request), **call.kwargs)


def _judge(check: Callable[..., Any], result: object, status: int) -> None:
    """Raise SignatureInvalid unless a check has returned True."""
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidRedlock(
            f"{view_name(check)} of @verified_by is a coroutine function, and its view is a sync "
            "view. Use a plain function"
        )
    if not isinstance(result, bool):
        raise InvalidRedlock(
            f"{view_name(check)} of @verified_by must return True or False, got "
            f"{type(result).__name__}"
        )
    if not result:
        raise SignatureInvalid(status=status)


def _challenge(response: Any, error: RedlockError) -> Any:
    """Return a response, with the header that HTTP requires in a 401."""
    if response.status_code == 401:
        response["WWW-Authenticate"] = "Signature"
    return response
