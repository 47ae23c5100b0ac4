"""OpenTelemetry: the counters of this process as observable instruments.

Call `observe()` once in each process after the SDK is set up; with a server that forks, in its
post-fork hook. Only the API package is required. Attributes are `redlock.using` and, for masters,
`redlock.master`. A resource is never an attribute, because the number of resources is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redlock_django.locking.counters import MasterCounts, counter_types, counters
from redlock_django.locking.handler import locks

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.opentelemetry needs opentelemetry-api: "
        "pip install 'redlock-django[opentelemetry]'"
    ) from error

Callback = Callable[[CallbackOptions], Iterator[Observation]]


def observe(meter: Meter | None = None) -> None:
    """Create an instrument for each counter of `counters.Counts`, and two for the masters.

    They are `redlock.acquired` and so on, `redlock.master.errors` and `redlock.master.up`.
    `meter` defaults to one of the global provider. Reading them sends nothing to the masters and
    does not slow down locks.
    """
    meter = meter or get_meter("redlock_django")
    for name, counter in counter_types().items():
        meter.create_observable_counter(
            f"redlock.{name}",
            [_number(name)],
            unit=counter.unit,
            description=counter.description,
        )
    meter.create_observable_counter(
        "redlock.master.errors",
        [_of_masters(lambda master: master.errors)],
        unit="{error}",
        description="Lost connections and failed attempts to connect",
    )
    meter.create_observable_gauge(
        "redlock.master.up",
        [_of_masters(lambda master: int(not master.down))],
        description="0 if the last attempt to reach the master failed, else 1",
    )


def _number(name: str) -> Callback:
    def ask(options: CallbackOptions) -> Iterator[Observation]:
        for alias in locks:
            yield Observation(getattr(counters[alias], name), {"redlock.using": alias})

    return ask


def _of_masters(value: Callable[[MasterCounts], int]) -> Callback:
    def ask(options: CallbackOptions) -> Iterator[Observation]:
        for alias in locks:
            for name, master in counters[alias].masters.items():
                about = {"redlock.using": alias, "redlock.master": name}
                yield Observation(value(master), about)

    return ask
