"""The glossaries of users and of contributors: in alphabetical order, and their symbols exist."""

from __future__ import annotations

import re

from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import DEFAULTS
from tests.test_documents import ROOT, symbols_of

USERS, CODE = (
    (ROOT / f"docs/{folder}/glossary.md").read_text() for folder in ("explanation", "contributing")
)
OTHERS = {
    "REDLOCK",
    "anonymous_scope",
    "default",
    "held",
    "holder",
    "redlock_django",
    "using",
    "wait",
}


def test_every_symbol_exists() -> None:
    known = OTHERS | {*DEFAULTS, *RedlockSettings.DEFAULTS}
    for path in (ROOT / "redlock_django").rglob("*.*"):
        found = symbols_of(path) if path.suffix == ".py" else {path.name}
        known |= found | {f"{path.stem}.{name}" for name in found}
    named = re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)?)`", USERS + CODE)
    assert sorted({*named} - known) == []


def test_terms_are_in_alphabetical_order_and_in_one_glossary_only() -> None:
    users, code = (
        [term.lower() for term in re.findall(r"^\*\*([^*,.]+)", page, re.MULTILINE)]
        for page in (USERS, CODE)
    )
    assert len(users + code) > 60
    assert (users, code) == (sorted(users), sorted(code))
    assert not {*users} & {*code}


def test_no_replacement_is_named_twice() -> None:
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|", CODE.partition("## Not this")[2], re.MULTILINE)
    assert len(words) > 3
    assert len(words) == len(set(words))
