"""django-ninja: describe locks and idempotency keys in the schema of an API."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from redlock_django.contrib.openapi import Described, complete
from redlock_django.contrib.possible_answers import Options, options_of, possible_answers
from redlock_django.web.rules import RuledView, ruled_views
from redlock_django.web.view_kinds import ninja_operations

try:
    from ninja import NinjaAPI
    from ninja.openapi.schema import OpenAPISchema
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.ninja needs django-ninja: pip install 'django-ninja>=1.3'"
    ) from error


def complete_schema(api: NinjaAPI) -> NinjaAPI:
    """Make an API describe what its locked and idempotent operations read and answer.

    These are the `Idempotency-Key` parameter, the headers `Idempotent-Replayed` and `Retry-After`,
    and a response with its problem type for each status. What the site describes itself is kept.
    Return the API. Call it once for each API; operations may be added later.
    """
    original = api.get_openapi_schema

    @wraps(original)
    def get_openapi_schema(**arguments: Any) -> OpenAPISchema:
        schema = original(**arguments)
        complete(schema, _described(api, schema.path_prefix))
        return schema

    api.get_openapi_schema = get_openapi_schema  # type: ignore[method-assign]
    return api


class _Operations(OpenAPISchema):
    """The operations of an API in place of what describes them, by path and method."""

    def methods(self, operations: list[Any]) -> dict[str, Any]:
        """Return the operation of each method."""
        return {method: operation for operation in operations for method in operation.methods}

    def get_components(self) -> dict[str, Any]:
        """Return nothing: there are no components."""
        return {}


def _described(api: NinjaAPI, path_prefix: str) -> Iterator[Described]:
    ruled = ruled_views()
    for path, methods in _Operations(api, path_prefix)["paths"].items():
        for method, operation in methods.items():
            answers = possible_answers(_options(operation, ruled), method)
            if answers is not None:
                yield Described(path, method, answers)


def _options(operation: Any, ruled: list[RuledView]) -> Iterator[Options]:
    """Yield the options of rules, of `@decorate_view`, and of the function."""
    for one in ruled:
        if any(operation is other for other in ninja_operations(one.view)):
            yield from options_of(one.locked)
    yield from options_of(vars(operation).get("run"), operation.view_func)
