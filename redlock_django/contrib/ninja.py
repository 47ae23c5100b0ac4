"""django-ninja: describe locks and idempotency keys in the schema of an API."""

from __future__ import annotations

from functools import wraps
from typing import Any

from redlock_django.contrib.openapi import complete

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
        complete(schema, _OperationFunctions(api, schema.path_prefix)["paths"])
        return schema

    api.get_openapi_schema = get_openapi_schema  # type: ignore[method-assign]
    return api


class _OperationFunctions(OpenAPISchema):
    """The functions that answer operations, in place of what describes them."""

    def methods(self, operations: list[Any]) -> dict[str, Any]:
        """Return `@decorate_view`, and the function of the operation, by method."""
        return {
            method.lower(): [vars(operation).get("run"), operation.view_func]
            for operation in operations
            for method in operation.methods
        }
