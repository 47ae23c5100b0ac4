"""docs/reference/stability.md and public-names.txt say what the package has."""

from __future__ import annotations

import re
import tomllib

import redlock_django
from redlock_django import exceptions
from tests.matrix import PYTHONS
from tests.public_names import LIST, ROOT, public_names

PAGE = (ROOT / "docs/reference/stability.md").read_text()


def test_the_public_names_are_those_of_the_package() -> None:
    """A line that goes or changes breaks a user: stability.md says when that may be."""
    listed, found = LIST.read_text().splitlines(), public_names()
    gone, new = sorted({*listed} - {*found}), sorted({*found} - {*listed})
    assert (gone, new) == ([], []), (
        "if the change is meant, say it in CHANGELOG.md and write the list again: "
        "uv run python -m tests.public_names > docs/reference/public-names.txt"
    )
    assert listed == found


IMPORTS = re.compile(r"^from (redlock_django[\w.]*) import ([\w, ]+)$", re.MULTILINE)
CONTRACT = "write-a-store.md"  # the page that describes the contract of a store, which is public


def test_what_a_page_tells_users_to_import_is_public() -> None:
    objects = {re.split(r"[ (:]", line)[1] for line in LIST.read_text().splitlines()}
    public = {f"redlock_django.{name}" for name in redlock_django.__all__} | objects
    public |= {f"redlock_django.signals.{name}" for name in objects}
    named = {
        f"{module}.{name.strip()}"
        for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md")
        if page.name != CONTRACT
        for module, names in IMPORTS.findall(page.read_text())
        for name in names.split(",")
    }
    assert len(named) > 20
    assert named - public == set()


def test_the_package_has_each_exception_that_a_page_names() -> None:
    ours = {name for name, one in vars(exceptions).items() if _is_ours(one)}
    pages = "".join(page.read_text() for page in ROOT.glob("docs/**/*.md") if page.name != "api.md")
    named = {name for name in re.findall(r"\b[A-Z]\w+\b", pages) if name in ours}
    assert {"StoreUnavailable", "BadName", "LockLost"} <= named
    assert named <= set(redlock_django.__all__)


def _is_ours(value: object) -> bool:
    return isinstance(value, type) and value.__module__.startswith("redlock_django")


def test_the_supported_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = dict(re.findall(r"^\| ([\w, ]+) \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert tuple(re.findall(r"[\d.]+", rows["Python"])) == PYTHONS
    djangos = [
        one.rpartition(" ")[2]
        for one in project["classifiers"]
        if re.fullmatch(r"Framework :: Django :: \d\.\d", one)
    ]
    assert re.findall(r"[\d.]+", rows["Django"]) == djangos
    bounds = {**dict(re.findall(r"([a-z]\w+)>=([\d.]+)", str(project["optional-dependencies"])))}
    assert f"psycopg {bounds['psycopg']}" in rows["PostgreSQL"]
    assert f"kazoo {bounds['kazoo']}" in rows["ZooKeeper"]


def test_the_page_has_a_row_for_each_kind_of_public_name() -> None:
    rows = {
        "names to import": {"attribute", "backend", "class", "function", "method", "object"},
        "settings": {"setting"}, "commands": {"command", "JSON"}, "signals": {"signal"},
        "metrics": {"metric"}, "problem types": {"problem"}, "permissions": {"permission"},
        "identifiers of system checks": {"check"}, "tables": {"column"},
    }  # fmt: skip
    assert [start for start in rows if f"\n| {start}" not in PAGE] == []
    kinds = {line.split(" ", 1)[0] for line in LIST.read_text().splitlines()}
    assert kinds == {kind for every in rows.values() for kind in every}


def test_each_identifier_of_a_check_is_that_of_one_subject() -> None:
    """A site that silences one must not silence another."""
    files: dict[str, set[str]] = {}
    for path in (ROOT / "redlock_django/checks").glob("*.py"):
        for number in re.findall(r"\"(?:redlock_django\.)?([EW]0\d\d)\"", path.read_text()):
            files.setdefault(number, set()).add(path.stem)
    assert len(files) > 20
    assert {number for number, where in files.items() if len(where) > 1} == {"E001"}
