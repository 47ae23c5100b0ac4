"""An integration whose package is missing names the extra to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("contrib.prometheus", "prometheus_client", "prometheus"),
        ("contrib.opentelemetry", "opentelemetry", "opentelemetry"),
        ("contrib.health_check", "health_check", "health-check"),
        ("contrib.drf", "rest_framework", "drf"),
        ("backends.zookeeper", "kazoo", "zookeeper"),
    ],
)
def test_import_error_names_the_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"redlock_django.{name}"
    for loaded in list(sys.modules):
        if loaded == module or loaded.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'redlock-django\[{extra}\]'"):
        importlib.import_module(module)
