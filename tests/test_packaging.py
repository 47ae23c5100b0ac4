"""The page of this project in a package index, and the requirements of an installation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pytest_django import Settings

from redlock_django.conf.masters import read_masters
from tests.test_architecture import imports, modules

ROOT = Path(__file__).resolve().parent.parent
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


def test_optional_packages_have_an_extra() -> None:
    assert {"drf", "health-check", "opentelemetry", "prometheus", "test"} <= set(
        PROJECT["project"]["optional-dependencies"]
    )


def test_setup_imports_neither_redis_nor_what_only_some_requests_need() -> None:
    code = (
        "import os, sys, django;"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'testproject.settings';"
        "django.setup();"
        "print({'redis', 'django_redis', 'http_sf', 'cryptography'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


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
