"""OpenAPI: the objects that describe what `possible_answers` finds, added to a schema.

`contrib.spectacular` and `contrib.ninja` find the operations of their framework. What the site has
described itself is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from http import HTTPStatus
from typing import Any, NamedTuple

from django.utils.translation import gettext

from redlock_django.contrib.possible_answers import PossibleAnswers
from redlock_django.idempotency.key import BARE_KEY, LONGEST
from redlock_django.idempotency.settings import IdempotencySettings
from redlock_django.web.answers import Problem

_PROBLEM = "application/problem+json"
_COMPONENTS = "#/components/schemas/RedlockProblem"
"""The beginning of the references to the components of this module; a status follows."""

_PYTHON_ONLY = re.compile(r"\(\?[^:=!<]|\(\?<[^=!]|\\[AZaUN]|[*+?}]\+")
"""Syntax that Python's regular expressions have, and those of ECMAScript and OpenAPI do not."""

_BOOLEAN = {"type": "boolean"}
_STRING = {"type": "string"}


class Described(NamedTuple):
    """An operation of a schema, by its path and its HTTP method, and what it may answer."""

    path: str
    method: str
    answers: PossibleAnswers


def complete(schema: dict[str, Any], described: Iterable[Described]) -> None:
    """Add the header parameter, the response headers and the responses to operations of a schema.

    Operations that the schema does not have are skipped. For each status there is one component,
    whose `code` is one of those that any operation of the schema answers with that status.
    """
    by_status: dict[int, list[Problem]] = {}
    for path, method, answers in described:
        item = schema.get("paths", {}).get(path, {})
        if method.lower() not in item:
            continue
        # A copy, because the methods of one function may share one object.
        operation = item[method.lower()] = deepcopy(item[method.lower()])
        _complete_operation(schema, operation, answers)
        for status, problems in answers.problems.items():
            by_status.setdefault(status, []).extend(problems)
    if by_status:
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for status, problems in sorted(by_status.items()):
            name = f"{_COMPONENTS.rpartition('/')[2]}{int(status)}"
            schemas.setdefault(name, _problem_schema(status, problems))


def _complete_operation(
    schema: Mapping[str, Any], operation: dict[str, Any], answers: PossibleAnswers
) -> None:
    if answers.key is not None:
        _add_key(schema, operation.setdefault("parameters", []), answers.key)
    responses = operation.setdefault("responses", {})
    if answers.replays:
        for response in responses.values():
            if _COMPONENTS not in str(response.get("content")):  # completed before, if it is there
                _add_header(response, "Idempotent-Replayed", _replayed())
    known = {str(status): status for status in responses}
    # django-ninja has numbers as keys, where JSON has strings.
    kind = int if any(isinstance(status, int) for status in responses) else str
    for status, problems in answers.problems.items():
        described = "; ".join(f"`{one.code}`: {gettext(one.title)}" for one in problems)
        key = known.get(str(status), kind(status))
        response = responses.setdefault(key, {"description": described})
        if "$ref" in response:
            continue
        reference = {"schema": {"$ref": f"{_COMPONENTS}{int(status)}"}}
        response.setdefault("content", {}).setdefault(_PROBLEM, reference)
        if any(problem.retryable for problem in problems):
            _add_header(response, "Retry-After", _retry_after())


def _add_header(response: dict[str, Any], name: str, header: dict[str, Any]) -> None:
    if "$ref" not in response:
        headers = response.setdefault("headers", {})
        if name.lower() not in map(str.lower, headers):
            headers[name] = header


def _add_key(
    schema: Mapping[str, Any], parameters: list[dict[str, Any]], key: IdempotencySettings
) -> None:
    header = key.header.lower()
    for parameter in (_resolved(schema, one) for one in parameters):
        if parameter.get("in") == "header" and parameter.get("name", "").lower() == header:
            return
    pattern = _ecmascript(key.key_pattern) or f"^{BARE_KEY}$"
    parameters.append(
        {
            "in": "header",
            "name": key.header,
            "required": key.required,
            "description": (
                "A key that the client chooses, such as a UUID, and sends again with each retry: "
                "the request takes effect once."
            ),
            "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": pattern},
        }
    )


def _resolved(schema: Mapping[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return the component of this schema that a reference names, or the value itself."""
    name = str(value.get("$ref", "")).removeprefix("#/components/parameters/")
    found: dict[str, Any] = schema.get("components", {}).get("parameters", {}).get(name, value)
    return found


def _ecmascript(pattern: re.Pattern[str] | None) -> str | None:
    """Return the pattern of a whole string in ECMAScript, None if it cannot be written there."""
    if pattern is None or pattern.flags != re.UNICODE or _PYTHON_ONLY.search(pattern.pattern):
        return None
    return f"^(?:{pattern.pattern})$"


def _replayed() -> dict[str, Any]:
    return {
        "description": (
            "For a request with a key: whether this is the recorded response to an earlier "
            "request with the key."
        ),
        "schema": dict(_BOOLEAN),
    }


def _retry_after() -> dict[str, Any]:
    return {
        "description": (
            "The seconds after which the same request may be sent again, if that is known."
        ),
        "schema": {"type": "integer", "minimum": 1},
    }


def _problem_schema(status: int, problems: Iterable[Problem]) -> dict[str, Any]:
    """Return the schema of the problem document of these problem types."""
    codes = sorted({problem.code for problem in problems})
    members = {name for problem in problems for name in problem.members}
    return {
        "type": "object",
        "description": f"A request that was answered {int(status)} ({HTTPStatus(status).phrase}) "
        "because of a lock or an idempotency key (RFC 9457).",
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": dict(_STRING),
            "status": {"type": "integer"},
            "detail": dict(_STRING),
            "code": {"type": "string", "enum": codes},
            "retryable": dict(_BOOLEAN),
            **{name: dict(_BOOLEAN) for name in sorted(members)},
        },
        "required": ["type", "title", "status", "detail", "code", "retryable"],
    }
