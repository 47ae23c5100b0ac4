"""The house keeps its shape: imports run downward only, and nothing is named for nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "redlock_django"

# Lowest first. A module may import from its own layer and from those below it.
LAYERS: list[tuple[str, ...]] = [
    ("engine",),
    ("wire",),
    ("exceptions",),
    ("conf.values", "conf.masters"),
    ("backends",),
    ("conf.settings",),
    ("signals", "locking", "fenced", "models", "migrations", "operate"),
    ("web", "middleware"),
    ("idempotency",),
    ("admin", "apps", "checks", "contrib", "management", "testing"),
]
# Modules that only re-export public names. For type checkers they import from layers above their
# own; at runtime they import a name when it is first used.
REEXPORTING = {"redlock_django", "redlock_django.exceptions"}
PURE = {
    "asyncio", "datetime", "django", "logging", "os", "queue", "random", "redis", "secrets",
    "select", "socket", "ssl", "subprocess", "sys", "threading", "time",
}  # fmt: skip
VAGUE = {"helper", "helpers", "util", "utils", "common", "manager", "misc", "core"}
ROOMY = {
    # file: why it may be longer than the rest
    "wire/links.py": "the one place where order, owed replies and the breaker are decided",
    "wire/sync.py": "who sends, who reads, who sleeps and who is woken: one story",
}  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """Every module of ours, and where it is."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports(path: Path, *, for_types: bool = False) -> set[str]:
    """Return every module that a file imports, also inside functions.

    Imports for type checkers only count with `for_types`.
    """
    tree = ast.parse(path.read_text())
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(ast.walk(node))
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only and not for_types:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            known = modules()
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
    return names


def layer(module: str) -> int:
    """Return the height of a module's layer; the longest name in LAYERS that fits decides."""
    name = module.removeprefix("redlock_django.")
    fitting = {
        entry: height
        for height, entries in enumerate(LAYERS)
        for entry in entries
        if f"{name}.".startswith(f"{entry}.")
    }
    assert fitting or name == "conf", f"{module} is in no layer: add it to LAYERS"
    return fitting[max(fitting, key=len)] if fitting else 0


OURS = [name for name in modules() if name != "redlock_django"]


@cache
def imported() -> dict[str, set[str]]:
    """Return the imports of each module at runtime."""
    return {name: imports(modules()[name]) for name in OURS}


@cache
def imported_for_types() -> dict[str, set[str]]:
    """Return the imports of each module, with those for type checkers only."""
    return {
        name: imports(modules()[name], for_types=name not in REEXPORTING) - {name} for name in OURS
    }


@pytest.mark.parametrize("module", OURS)
def test_imports_run_downward_only(module: str) -> None:
    upward = {
        other
        for other in imported_for_types()[module]
        if other.startswith("redlock_django.") and layer(other) > layer(module)
    }
    assert not upward


def test_there_are_no_import_cycles() -> None:
    graph = {
        module: {other for other in others if other in OURS}
        for module, others in imported_for_types().items()
    }
    TopologicalSorter(graph).prepare()


def test_a_site_that_only_locks_does_not_import_idempotency() -> None:
    script = (ROOT / "tests" / "app" / "site_with_locks_only.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    imported_by_locks, field = done.stdout.split("\n")
    assert imported_by_locks == "{200} []", done.stderr
    assert field.startswith('<input type="hidden" name="idempotency_key" value="')


@pytest.mark.parametrize("module", [name for name in OURS if ".engine" in name])
def test_the_engine_is_pure(module: str) -> None:
    roots = {name.split(".")[0] for name in imported()[module]}
    assert not roots & PURE
    if module.endswith((".quorum", ".errors")):
        assert not {name for name in imported()[module] if name.startswith("redlock_django")}


def test_the_wire_and_the_engine_know_no_django() -> None:
    for module, names in imported().items():
        if layer(module) <= 1:
            assert not {name for name in names if name.split(".")[0] == "django"}, module


def test_the_two_colours_do_not_know_each_other() -> None:
    assert "redlock_django.wire.aio" not in imported()["redlock_django.wire.sync"]
    assert "redlock_django.wire.sync" not in imported()["redlock_django.wire.aio"]


def test_only_the_tally_compares_counts_of_votes() -> None:
    comparing = re.compile(r"\.need\s*[<>=]|[<>]=?\s*\w+\.need|//\s*2")
    for path in (PACKAGE / "engine").glob("*.py"):
        if path.name != "quorum.py":
            assert not comparing.search(path.read_text()), path.name


def test_files_are_named_for_what_a_reader_looks_for_and_stay_short() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert path.stem not in VAGUE, path
        lines = len(path.read_text().splitlines())
        name = str(path.relative_to(PACKAGE))
        assert lines <= 280 or name in ROOMY, f"{name} has {lines} lines"


def test_public_names_are_there_and_documented() -> None:
    import redlock_django

    for name in redlock_django.__all__:
        assert getattr(redlock_django, name).__doc__ or name == "locks"
    assert callable(redlock_django.lock)


def test_lua_builds_no_key_and_prints_no_number_by_itself() -> None:
    for path in (PACKAGE / "engine" / "lua").glob("*.lua"):
        code = "\n".join(line.split("--")[0] for line in path.read_text().splitlines())
        assert "tostring" not in code, path.name
        assert "cjson" not in code, path.name
        for call in re.findall(r"redis\.p?call\(((?!'PUBLISH'|'SCAN')[^\n]*)", code):
            key = call.split(",")[1].strip() if "," in call else ""
            assert not key or re.match(r"KEYS\[|key\b|unpack\(KEYS|'TIME'", key), (path.name, call)
