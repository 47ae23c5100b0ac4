"""The summary of a run names the slowest test that should be marked slow."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def conftest(pytestconfig: pytest.Config) -> Any:
    """Return tests/conftest.py as pytest has loaded it."""
    [found] = [one for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "unmarked")]
    return found


@pytest.mark.parametrize(
    ("load", "reported"),
    [(0.1, "2 tests, the slowest sleeps (3.0 s)"), (99.0, "1 test computes (1.5 s)")],
)
def test_a_test_that_takes_over_a_second_is_named_unless_it_is_marked(
    conftest: Any, monkeypatch: pytest.MonkeyPatch, load: float, reported: str
) -> None:
    now = used = 0.0
    reports = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "getloadavg", lambda: (load,) * 3)
        patch.setattr(time, "monotonic", lambda: now)
        patch.setattr(time, "process_time", lambda: used)
        for name, marks, took, computed in (
            ("computes", {}, 1.5, 1.5),
            ("sleeps", {}, 3.0, 0.1),
            ("is short", {}, 0.9, 0.9),
            ("is marked", {"slow": 1}, 9.0, 9.0),
        ):
            report: Any = SimpleNamespace(nodeid=name, keywords=marks, user_properties=[])
            call = conftest.pytest_runtest_call(report)
            next(call)
            now, used = now + took, used + computed
            with pytest.raises(StopIteration):
                call.send(None)
            reports.append(report)
    assert conftest.unmarked(reports).endswith(f" not marked slow: {reported}")
    assert conftest.unmarked(reports[2:]) == ""
