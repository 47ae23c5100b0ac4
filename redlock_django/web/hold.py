"""`@hold`: run a plain function only while it holds a lock; for tasks, jobs and scripts."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction

from redlock_django.backends.values import LONGEST_WAIT, SHORTEST_TTL, duration, minimum_hold
from redlock_django.conf.arguments import helps_with_arguments
from redlock_django.exceptions import InvalidRedlock, ResourceLocked
from redlock_django.locking.exit_stacks import aenter_in_stack, enter_in_stack
from redlock_django.locking.lock import Lock, lock
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


@overload
def hold(
    *templates: str,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    min_hold: float | timedelta | None = None,
    reentrant: bool = False,
    on_conflict: Literal["skip"],
) -> _Skipping: ...


@overload
def hold(
    *templates: str,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    min_hold: float | timedelta | None = None,
    reentrant: bool = False,
    on_conflict: Literal["raise"] = "raise",
) -> Callable[[Function], Function]: ...


@helps_with_arguments
def hold(
    *templates: str,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    min_hold: float | timedelta | None = None,
    reentrant: bool = False,
    on_conflict: OnConflict = "raise",
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
    if not templates:
        raise InvalidRedlock("hold() needs a name: @hold('nightly')")
    for template in templates:
        if not isinstance(template, str):
            raise InvalidRedlock(
                f"hold() needs a name, got {template!r}. Write @hold('nightly'), with parentheses"
            )
    if on_conflict not in ("raise", "skip"):
        raise InvalidRedlock(f"hold(): on_conflict must be 'raise' or 'skip', got {on_conflict!r}")
    try:
        if ttl is not None:
            duration(ttl, "ttl", least=SHORTEST_TTL)
        if wait is not None:
            duration(wait, "wait", least=0.0, most=LONGEST_WAIT)
        minimum_hold(min_hold, ttl)
    except ValueError as error:
        raise InvalidRedlock(f"hold(): {error}") from None
    parsed = [Template(template) for template in templates]

    def decorate(function: Function) -> Function:
        _check(function)
        signature = inspect.signature(function)
        _check_parameters(function, signature, parsed)

        def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            names = [
                t.render_values({name: bound.arguments[name] for name in t.names}) for t in parsed
            ]
            return lock(
                *dict.fromkeys(names),  # two templates may name one resource
                using=using,
                ttl=ttl,
                wait=wait,
                min_hold=min_hold,
                reentrant=reentrant,
                holder={"path": _name(function)},
            )

        def skip(error: ResourceLocked) -> None:
            # Only the acquisition is skipped: a ResourceLocked from the body is not caught.
            if on_conflict == "raise":
                raise error
            logger.info("%s skipped: %s", _name(function), error, extra={"using": using})

        @functools.wraps(function)
        async def aheld(*args: Any, **kwargs: Any) -> Any:
            async with AsyncExitStack() as stack:
                try:
                    await aenter_in_stack(stack, lock_for(args, kwargs))
                except ResourceLocked as error:
                    return skip(error)
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def held(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                try:
                    enter_in_stack(stack, lock_for(args, kwargs))
                except ResourceLocked as error:
                    return skip(error)
                return function(*args, **kwargs)

        wrapper: Any = aheld if iscoroutinefunction(function) else held
        wrapper.__signature__ = signature  # Celery does not follow __wrapped__
        return cast("Function", wrapper)

    return decorate


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
