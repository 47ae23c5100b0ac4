"""OpenAPI: what locked and idempotent operations read, and answer instead of their view.

`contrib.spectacular` and `contrib.ninja` find the functions that answer the operations of their
framework. What the site has described itself is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.utils.translation import gettext

from redlock_django import exceptions as errors
from redlock_django.idempotency import refusals
from redlock_django.idempotency.key import BARE_KEY, LONGEST
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.locking.services import locks
from redlock_django.web.answers import Problem, problem_type_of_class
from redlock_django.web.options import LockOptions

_Errors = Iterator[tuple[type[errors.RedlockError] | Problem, int | None]]
"""Errors of which a view answers some request, and the HTTP status if it is a setting."""
_COMPONENTS = "#/components/schemas/RedlockProblem"
"""The beginning of the references to the components of this module; a status follows."""
_BOOLEAN, _STRING = {"type": "boolean"}, {"type": "string"}
_REPLAYED = {
    "description": "For a request with a key: whether this is the recorded response to an earlier "
    "request with the key.",
    "schema": _BOOLEAN,
}
_RETRY_AFTER = {
    "description": "The seconds after which the same request may be sent again, if that is known.",
    "schema": {"type": "integer", "minimum": 1},
}


def complete(schema: dict[str, Any], functions: Mapping[str, Mapping[str, Iterable[Any]]]) -> None:
    """Add the header parameter, the response headers and the responses to operations of a schema.

    `functions` are those that answer an operation, by its path and its HTTP method in lower case.
    Operations that the schema does not have are skipped. For each status there is one component,
    whose `code` is one of those that any operation of the schema answers with that status.
    """
    by_status: dict[int, list[Problem]] = {}
    for path, methods in functions.items():
        item = schema.get("paths", {}).get(path, {})
        for method in methods.keys() & item.keys():
            # A copy, because the methods of one function may share one object.
            operation = item[method] = deepcopy(item[method])
            for status, problems in _complete(schema, operation, methods[method], method.upper()):
                by_status.setdefault(status, []).extend(problems)
    if by_status:
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for status, problems in sorted(by_status.items()):
            name = f"{_COMPONENTS.rpartition('/')[2]}{status}"
            schemas.setdefault(name, _problem_schema(status, problems))


def _complete(
    schema: Mapping[str, Any], operation: dict[str, Any], functions: Iterable[Any], method: str
) -> Iterable[tuple[int, list[Problem]]]:
    """Complete an operation; return its problem types by HTTP status."""
    problems: dict[int, list[Problem]] = {}
    responses = operation.setdefault("responses", {})
    for options in _options_of(functions):
        if isinstance(options, IdempotentOptions):
            current = options.settings()
            found = _errors_of_idempotency(options, current) if method in current.methods else ()
            if found and options.key is None:
                _add_key(schema, operation.setdefault("parameters", []), current)
            for response in responses.values() if found else ():
                if _COMPONENTS not in str(response.get("content")):  # not completed before
                    _add_header(response, "Idempotent-Replayed", _REPLAYED)
        else:
            found = _errors_of_lock(options, method)
        for error, status in found:
            problem = error if isinstance(error, Problem) else problem_type_of_class(error)
            if problem is not None:
                known = problems.setdefault(status or problem.status, [])
                known += [] if problem in known else [problem]
    # django-ninja has numbers as keys, where JSON has strings.
    kind = int if any(isinstance(status, int) for status in responses) else str
    keys = {str(status): status for status in responses}
    for status, answered in sorted(problems.items()):
        described = "; ".join(f"`{one.code}`: {gettext(one.title)}" for one in answered)
        key = keys.get(str(status), kind(status))
        response = responses.setdefault(key, {"description": described})
        if "$ref" not in response:
            reference = {"schema": {"$ref": f"{_COMPONENTS}{status}"}}
            response.setdefault("content", {}).setdefault("application/problem+json", reference)
            if any(problem.retryable for problem in answered):
                _add_header(response, "Retry-After", _RETRY_AFTER)
    return problems.items()


def _options_of(functions: Iterable[Any]) -> Iterable[LockOptions | IdempotentOptions]:
    """Return the options of decorators, which leave them on their function and those around it."""
    every = [
        getattr(function, name, None)
        for function in functions
        for name in ("lock_options", "idempotent_options")
    ]
    return {id(one): one for one in every if one is not None}.values()


def _errors_of_lock(lock: LockOptions, method: str) -> _Errors:
    if lock.methods is not None and method not in lock.methods:
        return
    held = errors.ResourceLocked if lock.limit in (None, 1) else errors.LimitReached
    yield held, lock.status or locks[lock.using].settings.status
    yield errors.StoreUnavailable, None
    yield errors.LockLost, None
    if any(template.names or template.needs_request for template in lock.templates):
        yield errors.BadResource, None
    if method in ("POST", "PUT", "PATCH", "DELETE"):
        yield errors.IncompleteBody, None


def _errors_of_idempotency(options: IdempotentOptions, current: IdempotencySettings) -> _Errors:
    """Yield the refusals without those that the arguments and the settings exclude."""
    possible = {
        refusals.KEY_MISSING.code: current.required,
        refusals.KEY_UNSCOPED.code: not isinstance(options.scope, str),
        refusals.BODY_TOO_LARGE.code: bool(settings.DATA_UPLOAD_MAX_MEMORY_SIZE),
        refusals.TOO_MANY_WAITERS.code: current.wait > 0,
    }
    for refusal in refusals.REFUSALS:
        if possible.get(refusal.code, True):
            yield refusal, None
    yield errors.IncompleteBody, None


def _add_header(response: dict[str, Any], name: str, header: Mapping[str, Any]) -> None:
    if "$ref" not in response:
        headers = response.setdefault("headers", {})
        if name.lower() not in map(str.lower, headers):
            headers[name] = header


def _add_key(
    schema: Mapping[str, Any], parameters: list[dict[str, Any]], key: IdempotencySettings
) -> None:
    components = schema.get("components", {}).get("parameters", {})
    for parameter in parameters:
        name = str(parameter.get("$ref", "")).removeprefix("#/components/parameters/")
        known = components.get(name, parameter)
        if (known.get("in"), known.get("name", "").lower()) == ("header", key.header.lower()):
            return
    pattern = f"^{BARE_KEY}$"
    parameters.append(
        {
            "in": "header",
            "name": key.header,
            "required": key.required,
            "description": "A key that the client chooses, such as a UUID, and sends again with "
            "each retry: the request takes effect once.",
            "schema": {**_STRING, "minLength": 1, "maxLength": LONGEST, "pattern": pattern},
        }
    )


def _problem_schema(status: int, problems: Iterable[Problem]) -> dict[str, Any]:
    """Return the schema of the problem document of these problem types."""
    members = sorted({name for problem in problems for name in problem.members})
    required = {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _STRING,
        "status": {"type": "integer"},
        "detail": _STRING,
        "code": {"type": "string", "enum": sorted({problem.code for problem in problems})},
        "retryable": _BOOLEAN,
    }
    return {
        "type": "object",
        "description": f"A request that was answered {status} ({HTTPStatus(status).phrase}) "
        "because of a lock or an idempotency key (RFC 9457).",
        "properties": {**required, **dict.fromkeys(members, _BOOLEAN)},
        "required": [*required],
    }
