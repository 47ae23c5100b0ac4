"""The examples of docs/how-to/observe.md work as written."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from logging.config import dictConfig
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.test import AsyncRequestFactory
from prometheus_client import REGISTRY

from redlock_django.contrib.prometheus import RedlockCollector
from redlock_django.locking import reports
from redlock_django.locking.lock import lock
from redlock_django.testing import lose_lock
from tests.losses import ends_lost
from tests.pages import Page

if TYPE_CHECKING:
    from django.core.mail import EmailMessage
    from pytest_django import Settings

PAGE = Page("docs/how-to/observe.md")

pytestmark = pytest.mark.usefixtures("redlock_memory", "_as_before")


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Remove the collectors that a test has added."""
    yield
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, RedlockCollector):
            REGISTRY.unregister(collector)


def run(heading: str) -> dict[str, Any]:
    """Run the first code of a section and return its names."""
    names: dict[str, Any] = {}
    exec(PAGE.code(f"\n## {heading}\n"), names)
    return names


def test_the_signals_of_the_page_are_received(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("Signals")
    with ends_lost(), lock("order:1", holder={"path": "/pay/"}):
        lose_lock("order:1")
    assert re.match(r"lost \('order:1',\) of /pay/ after \d+\.", capsys.readouterr().out)
    assert names


@pytest.fixture
def _logging() -> Iterator[None]:
    """Configure the logger of the app again as it was before."""
    logger = logging.getLogger("redlock_django")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)


# Django 6.1 does so for every mail of a site without MAILERS.
@pytest.mark.filterwarnings("ignore:.*will not have a default mailer")
@pytest.mark.usefixtures("_logging")
def test_the_log_of_the_page_has_facts(
    capsys: pytest.CaptureFixture[str], settings: Settings, mailoutbox: list[EmailMessage]
) -> None:
    settings.ADMINS = ["ops@example.org"] if django.VERSION >= (6,) else [("", "ops@example.org")]
    dictConfig(run("The log")["LOGGING"])
    with ends_lost(), lock("order:1") as held:
        fingerprint = held.fingerprint
        lose_lock("order:1")
    logging.getLogger("redlock_django").error("no facts")
    lost, other = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"[-\d]+ [\d:,]+ WARNING redlock order:1: the lock was lost: lose_lock\(\) was called "
        rf"\[default order:1 {fingerprint}\]",
        lost,
    )
    assert other.endswith(" ERROR no facts [- - -]")
    [mail] = mailoutbox
    assert "no facts" in mail.subject


def test_the_numbers_of_the_page_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with lock("order:1"):
        pass
    counts = run("Numbers")["counts"]
    assert counts.acquired >= 1
    assert "127.0.0.1:6379 0 False" in capsys.readouterr().out


def test_the_prometheus_example_exports() -> None:
    run("Prometheus")
    with lock("order:1"):
        pass
    assert REGISTRY.get_sample_value("redlock_acquired_total", {"using": "default"})


def test_the_opentelemetry_example_runs() -> None:
    assert inspect.isfunction(run("OpenTelemetry")["observe"])


def test_the_example_of_spans_registers_an_observer() -> None:
    exec(PAGE.code("For spans as well"), {})
    assert len(reports.observers) == 1


async def test_the_health_checks_of_the_page_answer() -> None:
    for pattern in run("Health checks")["urlpatterns"]:
        answer = await pattern.callback(AsyncRequestFactory().get("/", {"format": "text"}))
        assert answer.status_code == 200
