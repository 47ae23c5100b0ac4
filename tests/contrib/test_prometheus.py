"""Prometheus with its real package: what a scrape returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redlock_django import leader
from redlock_django.contrib.prometheus import RedlockCollector
from redlock_django.exceptions import ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.locking.reports import counter_types
from redlock_django.testing import held_elsewhere, memory_masters

if TYPE_CHECKING:
    from pytest_django import Settings

TWO = {
    "default": {"MASTERS": ["redis://u:secret@a", "redis://b", "redis://c"]},
    "payments": {"MASTERS": ["redis://d"]},
}


@pytest.fixture(autouse=True)
def _masters(settings: Settings) -> None:
    settings.REDLOCK = TWO


def scraped(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    text = generate_latest(registry).decode()
    assert "secret" not in text
    assert "order" not in text, "a resource must not be a label"
    return {
        (sample.name, sample.labels["using"], sample.labels.get("master", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_returns_all_counters() -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RedlockCollector())
    with memory_masters() as backend:
        with lock("order:1"):
            pass
        with held_elsewhere("order:2"), pytest.raises(ResourceLocked):
            lock("order:2").acquire()
        backend.refuse(1)
        seen = scraped(registry)
    assert seen["redlock_acquired_total", "default", ""] == 1
    assert seen["redlock_released_total", "default", ""] == 1
    assert seen["redlock_refused_total", "default", ""] == 1
    assert seen["redlock_lost_total", "default", ""] == 0
    assert seen["redlock_acquired_total", "payments", ""] == 0
    assert seen["redlock_held_seconds_total", "default", ""] > 0
    assert seen["redlock_master_errors_total", "default", "b:6379"] == 1
    assert len([name for name, using, _ in seen if using == "payments"]) == len(counter_types()) + 4
    assert seen["redlock_master_up", "default", "b:6379"] == 0
    assert seen["redlock_master_up", "default", "c:6379"] == 1


def test_each_holder_of_a_name_with_a_limit_is_counted_once() -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RedlockCollector())
    with memory_masters():
        held = [lock("order:1", limit=3) for _ in range(3)]
        for one in held:
            one.acquire().disown()
        with pytest.raises(ResourceLocked):
            lock("order:1", limit=3).acquire()
        for one in held:
            one.release()
        seen = scraped(registry)
    numbers = {name: value for (name, using, _), value in seen.items() if using == "default"}
    assert numbers["redlock_acquired_total"] == numbers["redlock_released_total"] == 3
    assert numbers["redlock_refused_total"] == 1


def test_registering_reads_no_settings(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTER": "wrong"}}
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RedlockCollector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(RedlockCollector())


def test_the_metrics_show_whether_this_process_leads_and_since_when(
    redlock_memory: object,
) -> None:
    def shown() -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in RedlockCollector().collect()
            for sample in family.samples
            if sample.name.startswith("redlock_leading") and sample.labels["using"] == "default"
        }

    assert shown() == {"redlock_leading": 0, "redlock_leading_since_seconds": 0}
    with leader("scheduler") as term:
        assert shown() == {
            "redlock_leading": 1,
            "redlock_leading_since_seconds": term.since.timestamp(),
        }
