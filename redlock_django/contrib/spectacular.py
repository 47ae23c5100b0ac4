"""drf-spectacular: describe locks and idempotency keys in the schema of an API.

Add "redlock_django.contrib.spectacular.hook" to POSTPROCESSING_HOOKS in SPECTACULAR_SETTINGS.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from redlock_django.contrib.openapi import Described, complete
from redlock_django.contrib.possible_answers import Options, options_of, possible_answers
from redlock_django.web.mixins import LockResourceMixin
from redlock_django.web.rules import RuledView, ruled_views
from redlock_django.web.view_kinds import api_view_function

try:
    from drf_spectacular import plumbing
    from drf_spectacular.settings import spectacular_settings
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
    complete(result, _described(generator, request))
    _drop_docstrings_of_mixins(result)
    return result


def _drop_docstrings_of_mixins(schema: dict[str, Any]) -> None:
    """Drop the description of operations whose view class has no docstring but that of a mixin.

    It is for those who write the view. drf-spectacular leaves out those of REST framework itself.
    """
    docs = {_plumbing.get_doc(mixin) for mixin in (LockAPIMixin, LockResourceMixin)} - {""}
    for item in schema.get("paths", {}).values():
        for operation in item.values():
            if isinstance(operation, dict) and operation.get("description") in docs:
                del operation["description"]


def _described(generator: Any, request: Any) -> Iterator[Described]:
    ruled = ruled_views()
    trimmed = _prefix(generator) if spectacular_settings.SCHEMA_PATH_PREFIX_TRIM else ""
    for endpoint in generator.endpoints:
        method = endpoint[2]
        answers = possible_answers(_options(endpoint, ruled), method)
        if answers is not None:
            yield Described(_path(generator, request, endpoint, trimmed), method, answers)


def _options(endpoint: Any, ruled: list[RuledView]) -> Iterator[Options]:
    """Yield the options of rules, of the view of the URL, and of the handler of its method."""
    _, path_regex, method, callback = endpoint
    for one in ruled:
        if one.view is callback and one.is_at(path_regex):
            yield from options_of(one.locked)
    yield from options_of(callback)
    actions = getattr(callback, "actions", None) or {}
    handler = getattr(callback.cls, actions.get(method.lower(), method.lower()), None)
    yield from options_of(None if handler is None else api_view_function(handler))


def _path(generator: Any, request: Any, endpoint: Any, trimmed: str) -> str:
    """Return the path of an endpoint in the schema, as drf-spectacular makes it.

    `trimmed` is the regular expression of what is removed from its beginning.
    """
    path, _, method, callback = endpoint
    view = generator.create_view(callback, method)
    path = generator.coerce_path(path, method, view)
    if versioning := view.versioning_class:
        view.request = spectacular_settings.GET_MOCK_REQUEST(method, path, view, request)
        version = generator.api_version or versioning.default_version
        if version:
            patterns = generator.inspector.patterns
            path = _plumbing.modify_for_versioning(patterns, method, path, view, version)
    path = re.sub(trimmed, "", path, flags=re.IGNORECASE)
    path = (spectacular_settings.SCHEMA_PATH_PREFIX_INSERT or "") + path
    path = path if path.startswith("/") else f"/{path}"
    if spectacular_settings.CAMELIZE_NAMES:
        path, _ = _plumbing.camelize_operation(path, {"operationId": "any"})
    return str(path)


def _prefix(generator: Any) -> str:
    """Return the regular expression of SCHEMA_PATH_PREFIX, or of what all paths begin with."""
    prefix = spectacular_settings.SCHEMA_PATH_PREFIX
    if prefix is None:
        views = generator._get_paths_and_endpoints()
        several = len({type(view) for *_, view in views}) > 1
        prefix = re.escape(posixpath.commonpath([path for path, *_ in views])) if several else "/"
    return prefix if prefix.startswith("^") else f"^{prefix}"
