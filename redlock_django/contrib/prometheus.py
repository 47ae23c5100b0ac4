"""Prometheus: the counters of this process as metrics.

Call `prometheus_client.REGISTRY.register(RedlockCollector())` once in each process, for instance
in `AppConfig.ready`. Labels are `using` and, for masters, `master`. A resource is never a label,
because the number of resources is unbounded. Prometheus's multiprocess mode does not support
collectors: there, and wherever several processes share one address, expose each process at an
address of its own or use `contrib.opentelemetry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redlock_django.locking.leader import current_terms
from redlock_django.locking.reports import Counts, counter_types, counters
from redlock_django.locking.services import locks

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.prometheus needs prometheus-client: "
        "pip install 'redlock-django[prometheus]'"
    ) from error


class RedlockCollector(Collector):
    """Collect one metric for each counter of `counters.Counts`, two for masters, two for leaders.

    They are `redlock_acquired_total{using="default"}` and so on, `redlock_master_errors_total`
    and `redlock_master_up`; `redlock_leading` counts the terms of this process, and
    `redlock_leading_since_seconds` is when the last of them began, 0 if it does not lead.
    Collecting them sends nothing to the masters.
    """

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples: settings are not read before the first scrape."""
        yield from _families({})

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values.

        Raises InvalidRedlock if the settings are invalid.
        """
        yield from _families({alias: counters[alias] for alias in locks})


def _families(every: dict[str, Counts]) -> Iterator[Metric]:
    for name, counter in counter_types().items():
        family = CounterMetricFamily(f"redlock_{name}", counter.description, labels=["using"])
        for alias, counts in every.items():
            family.add_metric([alias], getattr(counts, name))
        yield family
    labels = ["using", "master"]
    errors = CounterMetricFamily(
        "redlock_master_errors", "Lost connections and failed attempts to connect", labels=labels
    )
    up = GaugeMetricFamily(
        "redlock_master_up",
        "0 if the last attempt to reach the master failed, else 1",
        labels=labels,
    )
    for alias, counts in every.items():
        for name, master in counts.masters.items():
            errors.add_metric([alias, name], master.errors)
            up.add_metric([alias, name], not master.down)
    yield errors
    yield up
    yield from _leading(every)


def _leading(aliases: Iterable[str]) -> Iterator[Metric]:
    leading = GaugeMetricFamily(
        "redlock_leading", "Under how many names this process leads", labels=["using"]
    )
    since = GaugeMetricFamily(
        "redlock_leading_since_seconds",
        "When the last term of this process began, in seconds since 1970; 0 if it does not lead",
        labels=["using"],
    )
    for alias in aliases:
        began = [term.since.timestamp() for term in current_terms(alias)]
        leading.add_metric([alias], len(began))
        since.add_metric([alias], max(began, default=0))
    yield leading
    yield since
