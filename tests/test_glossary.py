"""docs/explanation/glossary.md: its terms are in alphabetical order, and its symbols exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import DEFAULTS
from tests.test_documents import ROOT

TERMS, REPLACEMENTS = (
    (ROOT / "docs/explanation/glossary.md").read_text().split("## Not this word, but that")
)
NAMES = sorted(set(re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)?)`", TERMS)))
OTHERS = {"REDLOCK", "default", "engine", "held", "holder", "redlock_django", "settings.REDLOCK",
          "using", "wait"}  # fmt: skip
SETTINGS = {*DEFAULTS, *RedlockSettings.DEFAULTS}


def _names(tree: ast.AST, prefix: str) -> Iterator[str]:
    """Yield the names that a module or class defines, each alone and as `prefix.name`."""
    for node in ast.iter_child_nodes(tree):
        defined: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in defined:
            yield name
            yield f"{prefix}.{name}"
        if isinstance(node, ast.ClassDef):
            yield from _names(node, node.name)


def test_every_symbol_exists() -> None:
    scripts = {path.name for path in (ROOT / "redlock_django/engine/protocol/lua").glob("*.lua")}
    known = OTHERS | SETTINGS | scripts
    for path in (ROOT / "redlock_django").rglob("*.py"):
        known.update(_names(ast.parse(path.read_text()), path.stem))
    assert not [name for name in NAMES if name not in known]


def test_terms_are_in_alphabetical_order() -> None:
    """The page has the words that users meet first, and then the words of the code."""
    parts = [
        [term.lower() for term in re.findall(r"^\*\*([^*,.]+)", part, re.MULTILINE)]
        for part in TERMS.split("## In the code")
    ]
    assert len(parts) == 2
    assert sum(map(len, parts)) > 60
    assert parts == [sorted(part) for part in parts]
    assert not {*parts[0]} & {*parts[1]}


def test_no_replacement_is_named_twice() -> None:
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|", REPLACEMENTS, re.MULTILINE)
    assert len(words) == len(set(words))
