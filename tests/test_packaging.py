"""The page of this project in a package index, and the requirements of an installation."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pytest_django import Settings

from redlock_django.backends.redis.masters import read_masters
from tests import matrix
from tests.matrix import PYTHONS, SESSIONS
from tests.pages import ROOT
from tests.test_architecture import imports, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)[^)]*\)")


def test_the_index_shows_no_link_that_leads_nowhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(LINK.findall(text)) > 10
    for change in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"][
        "substitutions"
    ]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert LINK.findall(text) == []
    assert "tests (`docs/how-to/testing.md`)" in text


def test_the_lowest_version_of_every_dependency_is_declared_and_tested() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    declared = PROJECT["project"]["dependencies"] + [line for lines in extras for line in lines]
    bounded = re.compile(r"[\w-]+(\[\w+\])?>=\d+(\.\d+)*")
    assert [line for line in declared if not bounded.fullmatch(line)] == []
    assert SESSIONS["lowest"].lowest
    assert PROJECT["project"]["requires-python"] == f">={SESSIONS['lowest'].python}"


def test_every_file_of_the_package_but_caches_is_in_the_wheel() -> None:
    """Git lists what the build includes; a template or script that it ignores would be missing."""
    ignored = subprocess.run(
        ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "redlock_django"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ignored.returncode:
        pytest.skip("not a checkout")
    assert [line for line in ignored.stdout.splitlines() if "__pycache__" not in line] == []
    assert (ROOT / "redlock_django/py.typed").exists()
    assert not list((ROOT / "redlock_django").rglob("test_*"))
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["redlock_django"]}


@pytest.mark.nightly
def test_a_build_has_the_same_bytes_whenever_and_wherever_it_is_made(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    built = []
    for number, name in enumerate(("here", "elsewhere")):
        tree = tmp_path / name
        for path in filter(None, listed.stdout.split("\0")):
            if (ROOT / path).exists():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, tree / path)
                os.utime(tree / path, (number * 1e9, number * 1e9))
        subprocess.run(["uv", "build", "-q", "--out-dir", tree / "dist"], cwd=tree, check=True)
        files = sorted((tree / "dist").glob("redlock_django-*"))
        built.append({one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in files})
    assert len(built[0]) == 2
    assert built[0] == built[1]


def test_the_workflows_run_every_session_of_the_matrix() -> None:
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    assert set(SESSIONS) <= set(re.findall(r"[\w.-]+", workflows))
    versions = {
        *(f"Programming Language :: Python :: {version}" for version in PYTHONS),
        *(
            f"Framework :: Django :: {version}"
            for name in SESSIONS
            for version in re.findall(r"django(\d\.\d)$", name)
        ),
    }
    assert versions <= set(PROJECT["project"]["classifiers"])


def test_the_matrix_lists_the_supported_pythons_of_a_machine_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`.ci/run` takes the first and the last line."""
    here = {"3.13": "/opt/b/python", "3.9": "/opt/old/python", "3.11": "/opt/a/python"}
    monkeypatch.setattr(matrix, "interpreter", lambda version: here.get(version, ""))
    assert matrix.main(["--pythons"]) == 0
    assert capsys.readouterr().out == "3.11 /opt/a/python\n3.13 /opt/b/python\n"


def test_a_release_uploads_without_a_password_and_says_what_is_in_it_and_who_built_it() -> None:
    release = (ROOT / ".github/workflows/release.yml").read_text()
    for line in (
        *("environment: release", "id-token: write", "attestations: true"),
        "uv export -q --frozen --no-dev --all-extras --format cyclonedx1.5",
    ):
        assert line in release
    assert "secrets." not in release


def test_every_action_is_pinned_by_its_commit() -> None:
    """A tag can be moved to other code, which would run with the rights of the job."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert lines
    pinned = re.compile(r"[\w.]+: -? ?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    code = (
        "import sys, redlock_django;"
        "print([name for name in sys.modules if name.split('.')[0] in ('django', 'redis')"
        " or name.startswith('redlock_django.')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


SETUP = """
import sys, django
from django.conf import settings
settings.configure(INSTALLED_APPS=[*{apps!r}, "redlock_django"])
django.setup()
print("\\n".join(name for name in sys.modules if name.startswith({ours!r})))
"""
OURS = ("redlock_django.", "redis", "hiredis", "django_redis", "kazoo")
PLAIN = {
    "apps", "backends", "backends.database", "backends.database.dialects", "checks",
    "engine", "engine.inspection", "engine.inspection.printable",
    "models",
}  # fmt: skip
WITH_ADMIN = PLAIN | {
    "admin", "admin.held_locks", "admin.idempotency_records", "admin.read_only",
    "engine.errors", "exceptions",
}  # fmt: skip


@pytest.mark.parametrize(
    ("apps", "expected"), [((), PLAIN), (("admin", "messages"), WITH_ADMIN)], ids=["plain", "admin"]
)
def test_setup_imports_only_what_declares_models_and_pages(
    apps: tuple[str, ...], expected: set[str]
) -> None:
    """Every process pays for it: a worker that takes no lock, and each management command."""
    names = [f"django.contrib.{name}" for name in ("auth", "contenttypes", *apps)]
    code = SETUP.format(apps=names, ours=OURS)
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.removeprefix("redlock_django.") for name in shown.stdout.split()} == expected


@pytest.mark.slow
def test_django_redis_is_imported_for_a_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in modules().items():
        assert not {one for one in imports(path) if one.startswith("django_redis")}, name
    monkeypatch.setitem(sys.modules, "django_redis.cache", None)
    assert len(read_masters(["redis://10.0.0.1"], {})) == 1


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "", "no.such.Cache"])
def test_a_cache_whose_backend_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, backend: str
) -> None:
    monkeypatch.setitem(sys.modules, "django_redis.cache", None)
    settings.CACHES = {"locks": {"BACKEND": backend, "LOCATION": "redis://10.0.0.1/0"}}
    with pytest.raises(ValueError, match="cache 'locks': its BACKEND cannot be imported"):
        read_masters(["cache:locks"], {})
