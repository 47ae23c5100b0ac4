"""`@hold`: run a plain function only while it holds a lock; for tasks, jobs and scripts."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from functools import partial
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from asgiref.sync import iscoroutinefunction

from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    duration,
    minimum_hold,
    permits,
)
from redlock_django.conf.arguments import ArgumentCheck, checked
from redlock_django.exceptions import InvalidRedlock, ResourceLocked
from redlock_django.locking.lock import Lock
from redlock_django.web.name_templates import Template

logger = logging.getLogger("redlock_django")

Function = TypeVar("Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
OnConflict = Literal["raise", "skip"]


class _Skipping(Protocol):
    """The decorator `@hold(..., on_conflict="skip")`, whose function may return None instead."""

    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Result]], /
    ) -> Callable[Parameters, Coroutine[Any, Any, Result | None]]: ...

    @overload
    def __call__(
        self, function: Callable[Parameters, Result], /
    ) -> Callable[Parameters, Result | None]: ...


class HoldArguments(TypedDict, total=False):
    """The arguments of `lock()` that `hold` has, too."""

    using: str
    ttl: float | timedelta | None
    wait: float | timedelta | None
    min_hold: float | timedelta | None
    reentrant: bool
    limit: int | None


@overload
def hold(
    *templates: str, on_conflict: Literal["skip"], **arguments: Unpack[HoldArguments]
) -> _Skipping: ...


@overload
def hold(
    *templates: str, on_conflict: Literal["raise"] = "raise", **arguments: Unpack[HoldArguments]
) -> Callable[[Function], Function]: ...


def hold(
    *templates: str,
    on_conflict: OnConflict = "raise",
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    min_hold: float | timedelta | None = None,
    reentrant: bool = False,
    limit: int | None = None,
) -> Any:
    """Return a decorator that runs a function only while it holds the lock of its templates.

    Placeholders are the function's own parameters: `@hold("invoice:<int:pk>")`. The other arguments
    are those of `lock()`. Where another client holds the lock, `on_conflict` "raise" raises
    ResourceLocked, so that the caller can retry; "skip" returns None and does not run the function.
    QuorumUnreachable and LockLost are always raised. A job that clocks start on several machines
    needs `min_hold`, or it runs twice where a clock is behind by more than the job takes. Put
    `@task` and `@app.task` above `@hold`. Raises InvalidRedlock at import time for invalid
    arguments or templates.
    """
    given = locals()
    arguments = {name: given[name] for name in HoldArguments.__annotations__}
    if not templates:
        raise InvalidRedlock("hold() needs a name: @hold('nightly')")
    for template in templates:
        if not isinstance(template, str):
            raise InvalidRedlock(
                f"hold() needs a name, got {template!r}. Write @hold('nightly'), with parentheses"
            )
    if on_conflict not in ("raise", "skip"):
        raise InvalidRedlock(f"hold(): on_conflict must be 'raise' or 'skip', got {on_conflict!r}")

    checked("hold", {**_CHECKS, "min_hold": lambda value, _: minimum_hold(value, ttl)}, arguments)
    parsed = [Template(template) for template in templates]

    def decorate(function: Function) -> Function:
        _check(function)
        signature = inspect.signature(function)
        _check_parameters(function, signature, parsed)

        def lock(args: Any, kwargs: Any) -> Lock:
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            names = [
                template.render_values({name: call.arguments[name] for name in template.names})
                for template in parsed
            ]
            # Two templates may name one resource.
            lock = Lock(*dict.fromkeys(names), **arguments, holder={"path": _name(function)})
            lock.is_of_call = True
            return lock

        def skip(error: ResourceLocked) -> None:
            if on_conflict == "raise":
                raise error
            logger.info("%s skipped: %s", _name(function), error, extra={"using": using})

        held: Any
        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def held(*args: Any, **kwargs: Any) -> Any:
                async with AsyncExitStack() as stack:
                    try:  # only for its own lock: the body may raise the same error
                        await lock(args, kwargs).aenter_in(stack)
                    except ResourceLocked as error:
                        return skip(error)
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def held(*args: Any, **kwargs: Any) -> Any:
                with ExitStack() as stack:
                    try:
                        lock(args, kwargs).enter_in(stack)
                    except ResourceLocked as error:
                        return skip(error)
                    return function(*args, **kwargs)

        held.__signature__ = signature  # Celery does not follow __wrapped__
        return cast("Function", held)

    return decorate


_CHECKS: dict[str, ArgumentCheck] = {
    "ttl": partial(duration, least=SHORTEST_TTL),
    "wait": partial(duration, least=0.0, most=LONGEST_WAIT),
    "limit": permits,
}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _check(function: Any) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise InvalidRedlock(
            f"hold() needs a function, got {function!r}. Put @hold(...) directly on the function "
            "and @task, @app.task or @shared_task above it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRedlock(
            f"{_name(function)} is a generator, whose body would run after the lock is released. "
            "Use 'with lock(...)' in the body"
        )


def _check_parameters(
    function: Callable[..., Any], signature: inspect.Signature, templates: list[Template]
) -> None:
    for template in templates:
        if template.needs_request:
            raise InvalidRedlock(
                f"hold(): {template.text!r} reads from a request, and a function has none. "
                "Use the parameters of the function only"
            )
        for name in sorted(template.names - signature.parameters.keys()):
            raise InvalidRedlock(
                f"{_name(function)}: template {template.text!r} needs a parameter {name!r}; "
                f"the parameters are: {', '.join(map(repr, signature.parameters)) or 'none'}"
            )
