"""drf-spectacular: describe locks and idempotency keys in the schema of an API.

Add "redlock_django.contrib.spectacular.hook" to POSTPROCESSING_HOOKS in SPECTACULAR_SETTINGS.
"""

from __future__ import annotations

from typing import Any

from redlock_django.contrib.openapi import complete
from redlock_django.web.mixins import LockResourceMixin
from redlock_django.web.view_kinds import api_view_function

try:
    from drf_spectacular import plumbing
    from drf_spectacular.drainage import GENERATOR_STATS
    from drf_spectacular.openapi import AutoSchema
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.spectacular needs drf-spectacular: "
        "pip install 'redlock-django[spectacular]'"
    ) from error

from redlock_django.contrib.drf import LockAPIMixin  # after the error above, which names more

_plumbing: Any = plumbing  # its functions have no annotations


def hook(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Return the schema with what locked and idempotent operations read and answer.

    These are the `Idempotency-Key` parameter, the headers `Idempotent-Replayed` and `Retry-After`,
    and a response with its problem type for each status. What the site describes itself is kept.
    Raises InvalidRedlock for invalid settings.
    """
    complete(result, _functions(generator, request, public))
    # The docstring of a mixin is for those who write the view; REST framework's own are left out.
    docs = {_plumbing.get_doc(mixin) for mixin in (LockAPIMixin, LockResourceMixin)} - {""}
    for item in result.get("paths", {}).values():
        for operation in item.values():
            if isinstance(operation, dict) and operation.get("description") in docs:
                del operation["description"]
    return result


class _EndpointFunctions(AutoSchema):
    """The functions that answer an operation, in place of what describes it."""

    def __init__(self, callback: Any, method: str) -> None:
        super().__init__()
        actions = getattr(callback, "actions", None) or {}
        handler = getattr(callback.cls, actions.get(method.lower(), method.lower()), None)
        self.functions = [callback] if handler is None else [callback, api_view_function(handler)]

    def get_operation(self, *_: Any) -> dict[str, Any]:
        """Return them, and what the generator reads of an operation."""
        return {"operationId": "-", "functions": self.functions}


def _functions(generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Return the functions of each path and method, under the paths that the schema has."""
    create = generator.create_view

    def create_view(callback: Any, method: str, request: Any = None) -> Any:
        view = create(callback, method, request)
        view.schema = _EndpointFunctions(callback, method)
        return view

    generator.create_view = create_view
    try:
        with GENERATOR_STATS.silence():  # its warnings were shown when it made the schema
            paths: dict[str, Any] = generator.parse(request, public)
    finally:
        del generator.create_view
    return {
        path: {method: operation["functions"] for method, operation in item.items()}
        for path, item in paths.items()
    }
