"""List what users may write, read or store: docs/reference/public-names.txt, a line for each.

    uv run python -m tests.public_names > docs/reference/public-names.txt

writes the list again. A line that disappears or changes breaks a user: docs/reference/stability.md
says when that may be.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tests.api_page import METHODS, members, public_objects, signature
from tests.pages import ROOT

LIST = ROOT / "docs/reference/public-names.txt"
ELSEWHERE = ("redlock_django.middleware.LockMiddleware",)
"""Public names that the API page does not have, because they are written as strings only."""
BACKENDS = ("redis", "memory", "database", "zookeeper")


def public_names() -> list[str]:
    """Return the lines of the list."""
    every = (_objects, _signals, _settings, _commands, _documents, _metrics, _models, _problems)
    return [line for part in every for line in sorted(set(part()))]


def _objects() -> Iterator[str]:
    """Yield the objects on the API page with their parameters and members."""
    for _, name, value in public_objects():
        yield from _object(name, value)
    for name in BACKENDS:
        for key in import_module(f"redlock_django.backends.{name}").__all__:
            yield f"backend redlock_django.backends.{name}.{key}"
    yield from (f"class {name}" for name in ELSEWHERE)


def _object(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"class {name}{signature(value)}"
        for key, member in members(name, value):
            if callable(member):
                yield f"method {name}.{key}{signature(member)}"
            else:
                yield f"attribute {name}.{key}"
    elif callable(value):
        yield f"function {name}{signature(value)}"
    else:
        yield f"object {name}"
        for key in METHODS.get(name, ()):
            for method in (key, f"a{key}"):
                yield f"method {name}.{method}{signature(getattr(value, method))}"


def _signals() -> Iterator[str]:
    from redlock_django import signals

    described = re.findall(r"^- `(\w+)`:(.*?)(?=^- |^\n|\Z)", signals.__doc__ or "", re.M | re.S)
    for name, about in described:
        arguments = re.findall(r"`(\w+)`(?=[ ,;.(:]|$)", about)
        yield f"signal {name}: {' '.join(one for one in arguments if one != 'Idempotency')}"


def _settings() -> Iterator[str]:
    from redlock_django.backends.database.settings import DatabaseSettings
    from redlock_django.backends.redis.settings import RedlockSettings
    from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
    from redlock_django.conf.settings import DEFAULTS
    from redlock_django.idempotency.settings import DEFAULTS as IDEMPOTENCY

    for store, stores in (
        ("redis", RedlockSettings),
        ("database", DatabaseSettings),
        ("zookeeper", ZooKeeperSettings),
    ):
        for key in stores.DEFAULTS.keys() - DEFAULTS.keys():
            yield f"setting REDLOCK[alias][{key!r}] of the store {store}"
    for key in DEFAULTS:
        yield f"setting REDLOCK[alias][{key!r}]"
    for key in IDEMPOTENCY:
        yield f"setting REDLOCK[alias]['IDEMPOTENCY'][{key!r}]"


def _commands() -> Iterator[str]:
    from django.core.management import get_commands, load_command_class
    from django.core.management.base import BaseCommand

    from redlock_django.management.child_process import FENCE

    yield from (f"command {name} sets {FENCE}" for name in ("lead", "with_lock"))
    usual = BaseCommand().create_parser("manage.py", "x")._option_string_actions
    for name, app in get_commands().items():
        if app != "redlock_django":
            continue
        yield f"command {name}"
        parser = load_command_class("redlock_django", name).create_parser("manage.py", name)
        for action in parser._actions:
            for option in action.option_strings or [action.dest]:
                if option not in usual:
                    yield f"command {name} {option}"


def _documents() -> Iterator[str]:
    """Yield the keys of what commands print as JSON."""
    from django.core.management import call_command

    from redlock_django import lock
    from redlock_django.testing import memory_masters

    with memory_masters(), lock("order:1", limit=2), lock("order:2"):
        for name in ("list_locks", "redlock_status"):
            out = io.StringIO()
            call_command(name, "--format", "json", stdout=out)
            for path in _paths(json.loads(out.getvalue())):
                yield f"JSON of {name}: {path}"


def _paths(document: Any, path: str = "") -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            name = "NAME" if re.fullmatch(r"[\w.]*[0-9][\w.:-]*", key) else key
            yield f"{path}.{name}".lstrip(".")
            yield from _paths(value, f"{path}.{name}")
    elif isinstance(document, list):
        for value in document:
            yield from _paths(value, f"{path}[]")


def _metrics() -> Iterator[str]:
    from redlock_django.contrib.prometheus import RedlockCollector

    for family in RedlockCollector().describe():
        suffix = "_total" if family.type == "counter" else ""
        yield f"metric {family.name}{suffix} ({family.type})"


def _models() -> Iterator[str]:
    from django.apps import apps

    for model in apps.get_app_config("redlock_django").get_models():
        meta = model._meta
        for action in meta.default_permissions:
            yield f"permission redlock_django.{action}_{meta.model_name}"
        for name, _ in meta.permissions:
            yield f"permission redlock_django.{name}"
        if meta.managed:
            for field in meta.concrete_fields:
                yield f"column {meta.db_table}.{field.column}"


def _problems() -> Iterator[str]:
    from redlock_django.idempotency.refusals import REFUSALS
    from redlock_django.web import answers

    for problem in [*answers.PROBLEMS.values(), *REFUSALS]:
        yield f"problem {answers.PROBLEM_BASE}{problem.code} {problem.status}"
    source = "".join(path.read_text() for path in (ROOT / "redlock_django").rglob("*.py"))
    for check in re.findall(r"(?<!BL)\b([EW]0\d\d)\b", source):
        yield f"check redlock_django.{check}"


def main() -> None:
    """Print the list."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    import django

    django.setup()
    sys.stdout.write("".join(f"{line}\n" for line in public_names()))


if __name__ == "__main__":
    main()
