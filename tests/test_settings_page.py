"""docs/reference/settings.md lists every setting with its default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import DEFAULTS
from redlock_django.idempotency.settings import DEFAULTS as IDEMPOTENCY
from tests.test_documents import ROOT

PAGE = (ROOT / "docs/reference/settings.md").read_text()
WORDS = {"a day": timedelta(days=1), "30 days": timedelta(days=30), "1 MiB": 1024**2,
         "`POST`, `PATCH`": ["POST", "PATCH"]}  # fmt: skip


def table(heading: str) -> dict[str, str]:
    """Return the defaults in a section's table by their keys."""
    section = re.split(r"^## ", PAGE[PAGE.index(f"## {heading}\n") + 3 :], flags=re.MULTILINE)[0]
    found: dict[str, str] = {}
    for keys, default in re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", section, re.MULTILINE):
        names = re.findall(r"`(\w+)`", keys)
        defaults = default.split(", ") if len(names) > 1 else [default]
        if len(defaults) == 1:
            defaults *= len(names)
        found.update(zip(names, defaults, strict=True))
    return found


@pytest.mark.parametrize(
    ("heading", "known"),
    [("REDLOCK", {**RedlockSettings.DEFAULTS, **DEFAULTS}), ("IDEMPOTENCY", IDEMPOTENCY)],
)
def test_each_default_is_the_one_of_the_code(heading: str, known: Mapping[str, Any]) -> None:
    listed = table(heading)
    assert listed.keys() == known.keys()
    wrong = {key: (text, known[key]) for key, text in listed.items() if not same(text, known[key])}
    assert not wrong


def same(text: str, value: Any) -> bool:
    """Return whether the text of a cell is a value of the code."""
    if text in {"required", "Redis"}:
        return True
    if text in WORDS:
        return bool(_plain(WORDS[text]) == _plain(value))
    return bool(_plain(eval(text.strip("`"))) == _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, tuple | list | frozenset) else value
