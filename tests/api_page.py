"""Write docs/reference/api.md from signatures and docstrings.

    uv run python -m tests.api_page > docs/reference/api.md

It is Markdown for every reader of the repository, not only for a site that a tool builds.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import django

import redlock_django
from tests.pages import ROOT

PAGE = ROOT / "docs/reference/api.md"
HEAD = """# API

The public names of `redlock_django`, from their docstrings. What they are for:
[lock in code](../how-to/lock.md), [lock views](../how-to/views.md),
[idempotency](../how-to/idempotency.md). Durations are seconds or timedeltas. Exceptions are listed
in [errors](errors.md), signals [where locks are observed](../how-to/observe.md#signals).
"""

# Names as users import them; "module:" stands for all that the module exports.
SECTIONS = {
    "Locks": (
        "redlock_django.lock",
        "redlock_django.Lock",
        "redlock_django.resume_lock",
        "redlock_django.leader",
        "redlock_django.locking.leader.Term",
        "redlock_django.transaction_lock",
        "redlock_django.locks",
    ),
    "Views and functions": (
        "redlock_django.lock_resource",
        "redlock_django.LockResourceMixin",
        "redlock_django.resource",
        "redlock_django.hold",
    ),
    "Idempotency": (
        "redlock_django.idempotent",
        "redlock_django.IdempotentMixin",
        "redlock_django.admin.IdempotencyRecordAdmin",
    ),
    "Edit locks": ("redlock_django.contrib.edit_locks.EditLockMixin",),
    "Models, tasks and frameworks": (
        "redlock_django.fenced.FencedModel",
        "redlock_django.management.single_run.SingleRunMixin",
        "redlock_django.contrib.drf.LockAPIMixin",
        "redlock_django.contrib.drf.as_api_exception",
        "redlock_django.contrib.drf.exception_handler",
        "redlock_django.contrib.drf.object_permissions",
        "redlock_django.contrib.spectacular.hook",
        "redlock_django.contrib.ninja.complete_schema",
        "redlock_django.contrib.prometheus.RedlockCollector",
        "redlock_django.contrib.opentelemetry.observe",
        "redlock_django.contrib.opentelemetry.trace",
        "redlock_django.contrib.opentelemetry.untrace",
        "redlock_django.contrib.health_check.Redlock",
    ),
    "Numbers": ("redlock_django.counters",),
    "Exceptions": ("redlock_django.exceptions:",),  # listed in docs/reference/errors.md
    "Tests": ("redlock_django.testing:",),
}

LISTED = ("Tests",)
"""Sections with one line for each name."""

PAGES = {
    "redlock_django.idempotent": "idempotency.md#arguments",
    "redlock_django.leader": "../how-to/leader.md",
    "redlock_django.resume_lock": "../how-to/hand-on.md",
    "redlock_django.transaction_lock": "../how-to/transaction-lock.md",
    "redlock_django.hold": "../how-to/tasks.md#a-function",
    "redlock_django.IdempotentMixin": "../how-to/idempotency.md#classes-rest-framework-async",
    "redlock_django.contrib.edit_locks.EditLockMixin": "../how-to/edit-locks.md",
    "redlock_django.fenced.FencedModel": "../how-to/fencing.md",
    "redlock_django.management.single_run.SingleRunMixin": "../how-to/tasks.md",
    "redlock_django.contrib.drf.LockAPIMixin": "../how-to/drf.md#rest-framework",
    "redlock_django.contrib.drf.as_api_exception": "../how-to/drf.md#rest-framework",
    "redlock_django.contrib.drf.object_permissions": "../how-to/drf.md#rest-framework",
    "redlock_django.contrib.spectacular.hook": "../how-to/drf.md#the-openapi-schema",
    "redlock_django.contrib.ninja.complete_schema": "../how-to/drf.md#the-openapi-schema",
    "redlock_django.contrib.prometheus.RedlockCollector": "../how-to/observe.md#prometheus",
    "redlock_django.contrib.opentelemetry.observe": "../how-to/observe.md#opentelemetry",
    "redlock_django.contrib.opentelemetry.trace": "../how-to/observe.md#opentelemetry",
    "redlock_django.contrib.health_check.Redlock": "../how-to/observe.md#health-checks",
    "redlock_django.counters": "../how-to/observe.md#numbers",
}
"""Where all arguments of a name are described: then the page has the first paragraph only."""

CALLED_BY_DJANGO = {"as_view", "collect", "describe", "dispatch", "run"}

# Members that frameworks or this package call.
INTERNAL = {
    "redlock_django.Lock": "aenter_in disown enter_in guard has_committed is_of_call is_repeated "
    "keeps_response kept_by lost_at_commit set_wait",
    "redlock_django.contrib.drf.LockAPIMixin": "as_view check_object_permissions finalize_response "
    "finish_under_lock handle_exception initial",
    "redlock_django.management.single_run.SingleRunMixin": "execute",
    "redlock_django.contrib.edit_locks.EditLockMixin": "media change_view delete_view "
    "edit_presence_view get_form get_urls render_change_form save_form",
}

METHODS = {"redlock_django.locks": ("close", "connect")}
"""The public methods of an object, of each of which there is a coroutine method as well."""

SET_BY_USERS = {"redlock_django.admin.IdempotencyRecordAdmin": ("using",)}
"""The public members of a class whose other members are those of a framework's class."""


def public_objects() -> Iterator[tuple[str, str, Any]]:
    """Yield the section, the full name and the value of each object."""
    for section, names in SECTIONS.items():
        for name in names:
            module, _, key = name.rpartition("." if not name.endswith(":") else ":")
            for one in [key] if key else import_module(module).__all__:
                yield section, f"{module}.{one}", getattr(import_module(module), one)


def members(name: str, value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class: not Django's, and not those of a public base."""
    for key, member in inspect.getmembers(value):
        if key not in SET_BY_USERS.get(name, [key]):
            continue
        if not key.startswith("_") and key not in INTERNAL.get(name, "").split():
            definer = next((one for one in value.__mro__ if key in vars(one)), value)
            is_base = issubclass(definer, BaseException) and definer is not value
            is_ours = definer.__module__.startswith("redlock_django") and not is_base
            if is_ours and key not in {"Meta", "objects"}:
                yield key, member


def signature(value: Any) -> str:
    """Return the parameters with their defaults, without types: a type may become wider.

    Those of a class are its own: what a class of a library takes differs between its versions.
    """
    if inspect.isclass(value):
        begins: Any = value.__init__
        if not str(getattr(begins, "__module__", "")).startswith("redlock_django"):
            return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = [one.replace(annotation=one.empty) for one in parameters]
    text = str(inspect.Signature(shown))
    return re.sub(r"<(?:class '|function |object object)?([\w.]*)[^>]*>", r"<\1>", text)


def page() -> str:
    """Return the page."""
    text, section = [HEAD], ""
    for part, name, value in public_objects():
        if part == "Exceptions":
            continue
        if part != section:
            section = part
            text.append(f"\n## {section}\n\n")
        text.append(_line(name, value) if section in LISTED else _entry(name, value))
    return re.sub(r"\n{3,}", "\n\n", "".join(text))


def _entry(name: str, value: Any) -> str:
    about = inspect.getdoc(value if callable(value) else type(value)) or ""
    if name in PAGES:
        about = f"{_summary(about)} [More]({PAGES[name]})."
    lines = [f"\n### `{_shown(name)}{_called(name, value)}`\n\n{about}\n\n"]
    lines += [_line(key, getattr(value, key), f"a{key}") for key in METHODS.get(name, ())]
    if inspect.isclass(value):
        plain = []
        shown = dict(members(name, value))
        for key, member in shown.items():
            if key in CALLED_BY_DJANGO or (key[0] == "a" and key[1:] in shown):
                continue  # a coroutine method is named in the line of the method that it is like
            if callable(member) or isinstance(member, property):
                lines.append(_line(key, member, f"a{key}" if f"a{key}" in shown else ""))
            else:
                plain.append(f"`{key}`")
        if plain:
            lines.append(f"- Attributes: {', '.join(plain)}\n")
    return "".join(lines)


def _line(name: str, value: Any, coroutine: str = "") -> str:
    also = f", `{coroutine}`" if coroutine else ""
    about = _summary(inspect.getdoc(value) or "")
    return f"- `{_shown(name)}{_called(name, value)}`{also}: {about}\n"


def _summary(about: str) -> str:
    return about.split("\n\n")[0].replace("\n", " ")


def _shown(name: str) -> str:
    """Return the name with the module from which it is imported, if that is not the package."""
    short = name.rpartition(".")[2]
    return short if short in redlock_django.__all__ or "." not in name else name


def _called(name: str, value: Any) -> str:
    is_made_here = name.rpartition(".")[2] in {"Lock", "LocalMaster", "Term"}
    if not callable(value) or is_made_here:
        return ""
    return re.sub(r"\((self|cls)(?:, )?", "(", signature(value)).split(" -> ")[0]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    sys.stdout.write(page())
