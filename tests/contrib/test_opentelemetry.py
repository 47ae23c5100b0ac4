"""OpenTelemetry with its real SDK: what a metric reader collects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from redlock_django.contrib.opentelemetry import observe
from redlock_django.locking.lock import lock
from redlock_django.locking.reports import counter_types
from redlock_django.testing import memory_masters

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(autouse=True)
def _masters(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://u:secret@a", "redis://b", "redis://c"]}}


def test_a_reader_collects_all_counters() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    observe(provider.get_meter("tests"))
    with memory_masters() as backend:
        for _ in range(2):
            with lock("order:1"):
                pass
        backend.hang(2)
        data: Any = reader.get_metrics_data()
    provider.shutdown()
    [scope] = data.resource_metrics[0].scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    assert set(metrics) == {
        *(f"redlock.{name}" for name in counter_types()),
        "redlock.master.errors",
        "redlock.master.up",
    }
    [point] = metrics["redlock.acquired"].data.data_points
    assert (point.value, dict(point.attributes)) == (2, {"redlock.using": "default"})
    assert metrics["redlock.acquired"].data.is_monotonic
    assert metrics["redlock.held_seconds"].unit == "s"
    up = {
        p.attributes["redlock.master"]: p.value
        for p in metrics["redlock.master.up"].data.data_points
    }
    assert up == {"a:6379": 1, "b:6379": 1, "c:6379": 0}
    assert "secret" not in data.to_json()
    assert "order:1" not in data.to_json()


def test_without_an_sdk_metrics_do_nothing() -> None:
    observe()
    with memory_masters(), lock("order:1"):
        pass
