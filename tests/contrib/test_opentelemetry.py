"""OpenTelemetry with its real SDK: spans of acquire, wait, hold and release; metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redlock_django.contrib.opentelemetry import observe, trace, untrace
from redlock_django.exceptions import QuorumUnreachable, ResourceLocked
from redlock_django.locking import reports
from redlock_django.locking.lock import lock
from redlock_django.locking.reports import counter_types
from redlock_django.testing import held_elsewhere, lose_lock, memory_masters
from tests.losses import ends_lost
from tests.waiting import hold_until_wanted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer
    from pytest_django import Settings

    from redlock_django.backends.memory.backend import MemoryBackend


class Traced:
    """The tracer of a test, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self.provider.get_tracer("tests")

    def spans(self) -> list[ReadableSpan]:
        """Return the spans, the first one first."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        [span] = [span for span in self.spans() if span.name == name]
        return span


def about(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, without their prefix."""
    return {name.removeprefix("redlock."): value for name, value in (span.attributes or {}).items()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    trace(traced.tracer)
    yield traced
    untrace()
    traced.provider.shutdown()


@pytest.fixture(autouse=True)
def masters(settings: Settings) -> Iterator[MemoryBackend]:
    settings.REDLOCK = {"default": {"MASTERS": ["redis://u:secret@a", "redis://b", "redis://c"]}}
    with memory_masters() as backend:
        yield backend


def check_pair(traced: Traced) -> None:
    """Check the spans of one lock that was acquired and released inside the span "request"."""
    acquire, hold, release = (
        traced.named(f"redlock {name}") for name in ("acquire", "hold", "release")
    )
    lease = about(acquire)
    assert lease.pop("granted") in (2, 3)
    assert len(lease.pop("fingerprint")) == 8
    assert lease == {
        "using": "default",
        "resources": ("order:1",),
        "outcome": "acquired",
        "attempts": 1,
        "masters": 3,
        "quorum": 2,
    }
    assert (about(hold)["outcome"], about(release)["outcome"]) == ("released", "confirmed")
    assert (acquire.kind, hold.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    assert {span.status.status_code for span in (acquire, hold, release)} == {StatusCode.UNSET}
    request = traced.named("request")
    for span in (acquire, hold, release):
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id
    assert (acquire.end_time, hold.end_time) == (hold.start_time, release.start_time)


def test_a_lock_in_a_thread(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("request"), lock("order:1"):
        pass
    check_pair(traced)


async def test_a_lock_in_a_task(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("request"):
        async with lock("order:1"):
            pass
    check_pair(traced)


def test_a_lock_that_another_thread_releases(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("request"):
        held = lock("order:1").acquire()
        thread = threading.Thread(target=held.release)
        thread.start()
        thread.join()
    check_pair(traced)


def test_a_wait_has_a_span(traced: Traced) -> None:
    hold_until_wanted("order:1")
    wait = traced.named("redlock wait")
    acquired = [span for span in traced.spans() if span.name == "redlock acquire"][1]
    assert about(wait)["outcome"] == "acquired"
    assert about(wait)["attempts"] == about(acquired)["attempts"] >= 2
    assert wait.end_time == acquired.start_time


def test_a_refusal_is_no_error(traced: Traced) -> None:
    with held_elsewhere("order:1"), pytest.raises(ResourceLocked):
        lock("order:1").acquire()
    [span] = traced.spans()
    assert span.name == "redlock acquire"
    assert (span.end_time or 0) > (span.start_time or 0)
    assert span.status.status_code is StatusCode.UNSET
    facts = about(span)
    assert facts["outcome"] == "refused"
    assert facts["attempts"] >= 1
    assert {answer.partition(" ")[0] for answer in facts["answers"]} == {
        "a:6379:",
        "b:6379:",
        "c:6379:",
    }
    assert "held by another client" in facts["answers"][0]
    assert "secret" not in span.to_json()


def test_the_spans_of_a_slot_name_the_name_and_the_slot(traced: Traced) -> None:
    with held_elsewhere("export", limit=3, slots=2), lock("export", limit=3) as held:
        slot = held.slot
        held.disown()
        with pytest.raises(ResourceLocked):
            lock("export", limit=3).acquire()
    acquired, refused, *rest = [about(span) for span in traced.spans() if "acq" in span.name]
    assert (acquired["resources"], acquired["slot"]) == (("export",), slot)
    assert (refused["resources"], refused["outcome"]) == (("export",), "refused")
    assert "slot" not in refused
    assert not rest
    for name in ("redlock hold", "redlock release"):
        facts = about(traced.named(name))
        assert (facts["resources"], facts["slot"]) == (("export",), slot)


def test_no_quorum_is_an_error(traced: Traced, masters: MemoryBackend) -> None:
    masters.refuse(0)
    masters.refuse(1)
    with pytest.raises(QuorumUnreachable):
        lock("order:1").acquire()
    [span] = traced.spans()
    assert about(span)["outcome"] == "unavailable"
    assert span.status.status_code is StatusCode.ERROR
    assert "2 of 3 masters cannot be counted" in str(span.status.description)


def test_a_lost_lock_ends_its_hold_once(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("request"), ends_lost(), lock("order:1"):
        lose_lock("order:1")
    hold = traced.named("redlock hold")
    assert about(hold)["outcome"] == "lost"
    assert hold.status.description == "lose_lock() was called"
    assert hold.parent is not None
    assert hold.parent.span_id == traced.named("request").context.span_id
    assert "redlock release" not in {span.name for span in traced.spans()}


def test_a_lock_acquired_before_tracing_has_its_end_traced(masters: MemoryBackend) -> None:
    traced = Traced()
    held = lock("order:1").acquire()
    trace(traced.tracer)
    try:
        held.release()
    finally:
        untrace()
    assert [span.name for span in traced.spans()] == ["redlock hold", "redlock release"]
    traced.provider.shutdown()


def test_a_second_call_replaces_the_first(traced: Traced) -> None:
    trace(traced.tracer)
    with lock("order:1"):
        pass
    assert len(traced.spans()) == 3
    untrace()
    assert reports.observers == []


def test_an_observer_that_fails_does_not_affect_the_lock(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    reports.observers.insert(0, object())  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR, "redlock_django"), lock("order:1"):
        pass
    assert len(traced.spans()) == 3
    assert caplog.text.count("an observer of locks failed") == 2
    del reports.observers[0]


# Metrics.


def test_a_reader_collects_all_counters(masters: MemoryBackend) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    observe(provider.get_meter("tests"))
    for _ in range(2):
        with lock("order:1"):
            pass
    masters.hang(2)
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


def test_without_an_sdk_metrics_and_spans_do_nothing() -> None:
    observe()
    trace()
    try:
        with lock("order:1"):
            pass
    finally:
        untrace()
