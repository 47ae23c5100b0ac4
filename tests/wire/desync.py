"""Send very many commands over links whose replies are held, cut and sliced, and check each reply.

`uv run python -m tests.wire.desync --commands 1000000 [--variant threads] [--seed 1]` goes on
until the masters have run that many scripts. Three of five masters are behind proxies that hold
replies past MASTER_TIMEOUT, deliver them byte by byte or late, or reset the connection. A reply
matched to the wrong round has another number, another shape, or a fence that does not grow. The
exit status is 1 if there is one, or if anything is left on a master at the end.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.validity import LeaseState
from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.wire.clock import clock
from tests.live.left_over import nothing_left
from tests.looking import looking_at
from tests.wire.proxy import FaultProxy
from tests.wire.variants import VARIANTS, Variant, make_backend, open_variant, trust

TIMEOUT = 0.1
WORKERS = 8


class Seen(logging.Handler):
    """Counters of what happened; `wrong` lists what must not happen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.times: Counter[str] = Counter()
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record errors: here only a reply that fits no round is logged as one."""
        if "cannot" not in (text := record.getMessage()):
            self.wrong.append(text)


def commands(masters: list[LocalMaster]) -> int:
    """Return how many scripts the masters were asked to run."""
    stats = [looking_at(master).info("commandstats") for master in masters]
    return sum(stat.get("cmdstat_evalsha", {"calls": 0})["calls"] for stat in stats)


def worker(variant: Variant, number: int, seed: int, over: threading.Event, seen: Seen) -> None:
    """Acquire, extend and release one to three resources at a time; each fence must grow."""
    rng, last = Random(f"{seed}/{number}"), dict[str, int]()
    while not over.is_set():
        many = rng.randint(1, 3)
        resources = tuple(f"order:{number}:{index}" for index in range(many))
        try:
            lease = variant.acquire(*resources, ttl=8.0)
        except NotAcquired:
            seen.times["not acquired"] += 1
            time.sleep(0.005)
            continue
        seen.times["acquired"] += 1
        if len(lease.fences) != many:
            seen.wrong.append(f"{lease.fences} for {resources}")
        for resource, fence in zip(resources, lease.fences, strict=False):
            if fence <= last.get(resource, 0):
                seen.wrong.append(f"{resource}: fence {fence} after {last[resource]}")
            last[resource] = fence
        if rng.random() < 0.3:
            until = lease.until
            state, lease = variant.extend(lease)
            seen.times[f"extension: {state.value}"] += 1
            if state is LeaseState.LOST and clock() < until:
                seen.wrong.append(f"{resources} lost before the end of its TTL")
        if variant.release(lease) is False and clock() < lease.until:
            seen.wrong.append(f"{resources} gone before its release")


@contextmanager
def faults(proxies: list[FaultProxy], seed: int, seen: Seen) -> Iterator[None]:
    """Disturb the proxies, one after the other, while the block runs."""
    rng, over = Random(f"{seed}/faults"), threading.Event()

    def disturb() -> None:
        while not over.wait(rng.uniform(0, 0.05)):
            proxy, kind = (
                rng.choice(proxies),
                rng.choice(("hold", "hold", "slice", "late", "cut")),
            )
            seen.times[kind] += 1
            if kind == "cut":
                proxy.cut()
            elif kind == "hold":
                proxy.hold()
                over.wait(rng.uniform(0, 2 * TIMEOUT))
                proxy.let_go()
            elif kind == "slice":
                proxy.slices = not proxy.slices
            else:
                proxy.delay_down = rng.choice((0.0, 0.0, rng.uniform(0, TIMEOUT)))

    thread = threading.Thread(target=disturb)
    thread.start()
    yield
    over.set()
    thread.join()
    for proxy in proxies:
        proxy.slices, proxy.delay_down = False, 0.0
        proxy.let_go()


def run(name: str, wanted: int, seed: int) -> tuple[int, Seen]:
    """Run until that many commands were executed; return how many, and what happened."""
    seen = Seen()
    logging.getLogger("redlock_django").addHandler(seen)
    with ExitStack() as stack:
        masters = stack.enter_context(local_masters(5))
        proxies = [stack.enter_context(FaultProxy(master.port)) for master in masters[:3]]
        urls = [*(proxy.url for proxy in proxies), *(master.url for master in masters[3:])]
        backend = make_backend(urls, master_timeout=TIMEOUT)
        for master in masters:
            trust(master, backend.deployment)
        variant = stack.enter_context(open_variant(name, backend))
        variant.start()
        over = threading.Event()
        threads = [
            threading.Thread(target=worker, args=(variant, number, seed, over, seen))
            for number in range(WORKERS)
        ]
        with faults(proxies, seed, seen):
            for thread in threads:
                thread.start()
            while (done := commands(masters)) < wanted and not seen.wrong:
                sys.stderr.write(f"\r{done:,} of {wanted:,} ")
                over.wait(0.2)
            over.set()
            for thread in threads:
                thread.join()
        if not seen.wrong:
            variant.wait_usable(5)
            nothing_left(masters)
        done = commands(masters)
    logging.getLogger("redlock_django").removeHandler(seen)
    return done, seen


def main(argv: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.desync")
    parser.add_argument(
        "--commands", type=int, default=1_000_000, help="commands to run (1,000,000)"
    )
    parser.add_argument(
        "--variant", choices=VARIANTS, default=VARIANTS[0], help="which driver (threads)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (1)")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    done, seen = run(options.variant, options.commands, options.seed)
    took = time.perf_counter() - began
    sys.stderr.write("\n")
    for what, times in sorted(seen.times.items()):
        sys.stdout.write(f"{times:12,} {what}\n")
    for wrong in seen.wrong[:20]:
        sys.stdout.write(f"{wrong}\n")
    end = f"{len(seen.wrong)} wrong" if seen.wrong else "each reply reached its own round"
    sys.stdout.write(f"{done:,} commands in {took:.0f} s, {options.variant}: {end}\n")
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
