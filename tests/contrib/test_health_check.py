"""django-health-check with its real view: all masters, a missing minority, no quorum."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.test import RequestFactory
from health_check.views import HealthCheckView

from redlock_django.testing import memory_masters
from tests.app.conftest import stop_clocks

if TYPE_CHECKING:
    from pytest_django import Settings

CHECK = "redlock_django.contrib.health_check.Redlock"
Ask = Callable[..., Any]


@pytest.fixture(autouse=True)
def _three(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {
            "MASTERS": ["redis://a", "redis://b", "redis://c"],
            "OPTIONS": {"password": "secret"},
        }
    }


async def ask(**options: Any) -> tuple[int, str]:
    """Return the view's status code and its text about the masters."""
    view = HealthCheckView.as_view(checks=[(CHECK, options)])
    request = RequestFactory().get("/", {"format": "json"})
    answer = await view(request)
    said = json.loads(answer.content)
    assert "secret" not in answer.content.decode()
    [text] = said.values()
    return answer.status_code, text


async def test_all_masters_are_up() -> None:
    with memory_masters():
        assert await ask() == (200, "OK")


async def test_a_missing_minority_is_no_failure() -> None:
    with memory_masters() as backend:
        backend.hang(1)
        assert await ask() == (200, "OK")


@pytest.mark.parametrize("warn", [True, False])
async def test_no_quorum_is_unavailable(caplog: pytest.LogCaptureFixture, warn: bool) -> None:
    with memory_masters() as backend:
        stop_clocks()  # for the text below
        backend.refuse(1)
        backend.restart(2)
        status, text = await ask(warn=warn)
    assert status == 500
    assert text == "Unavailable: 1 of 3 masters are counted, and 2 must agree"
    assert f"health check: {text.removeprefix('Unavailable: ')}: b:6379 " in caplog.text
    assert "c:6379 has restarted, was emptied or is new: trusted in 64 s" in caplog.text


@pytest.mark.attack
@pytest.mark.parametrize("warn", [True, False])
async def test_a_public_page_names_no_master(caplog: pytest.LogCaptureFixture, warn: bool) -> None:
    with memory_masters() as backend:
        backend.refuse(1)
        if not warn:
            backend.refuse(2)
        status, text = await ask(warn=warn)
    assert status == 500
    assert text == (
        "Warning: 2 of 3 masters are counted, which is enough"
        if warn
        else "Unavailable: 1 of 3 masters are counted, and 2 must agree"
    )
    assert "b:6379 refused the connection" in caplog.text


async def test_each_alias_has_its_own_health(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://a"]}, "jobs": {"MASTERS": ["redis://b"]}}
    with memory_masters(using="jobs") as backend:
        backend.refuse(0)
        assert (await ask())[0] == 200
        assert (await ask(using="jobs"))[0] == 500
