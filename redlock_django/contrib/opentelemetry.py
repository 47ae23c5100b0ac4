"""OpenTelemetry: what this process has counted, as observable instruments.

`observe()` once in each process, behind the set-up of the SDK: with servers that fork, in their
post-fork hook. Only the API is needed here. Attributes are `redlock.using` and, for masters,
`redlock.master`; never a resource, of which there may be any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redlock_django.locking.counters import DESCRIPTIONS, MasterCounts, counters
from redlock_django.locking.handler import locks

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.opentelemetry needs opentelemetry-api: "
        "pip install 'redlock-django[opentelemetry]'"
    ) from error

_UNITS = dict.fromkeys(("replayed", "conflicted", "mismatched", "uncertain"), "{request}")

Callback = Callable[[CallbackOptions], Iterator[Observation]]


def observe(meter: Meter | None = None) -> None:
    """Make an instrument for each number of `counters.Counts`, and for the masters.

    `redlock.acquired` and so on, `redlock.master.errors` and `redlock.master.up`. `meter` is the
    global provider's if left out. Asks no master, and costs locks nothing.
    """
    meter = meter or get_meter("redlock_django")
    for name, description in DESCRIPTIONS.items():
        meter.create_observable_counter(
            f"redlock.{name}",
            [_number(name)],
            unit="s" if name.endswith("_seconds") else _UNITS.get(name, "{lock}"),
            description=description,
        )
    meter.create_observable_counter(
        "redlock.master.errors",
        [_of_masters(lambda master: master.errors)],
        unit="{error}",
        description="Lost links and failed attempts to connect",
    )
    meter.create_observable_gauge(
        "redlock.master.up",
        [_of_masters(lambda master: int(not master.down))],
        description="1 unless the master was unreachable last",
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
