"""The jobs for the sync API. Times are in seconds; `figures` defines the figures."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.worker.contender import Contender
from benchmarks.worker.figures import Done, Profile, Span, clock, latencies
from benchmarks.worker.witness import LOOK_EVERY, Intruder, Turnstile

KEYS = 64


def pairs(
    contender: Contender,
    intruder: Intruder,
    *,
    seconds: float,
    warm_up: float = 0.2,
    profile: bool = False,
) -> dict[str, Any]:
    """Acquire and release repeatedly."""
    names = [name("pair", place) for place in range(KEYS)]
    some_pairs(contender, intruder, names, clock() + warm_up)
    watch, span = Profile(profile), Span()
    with watch.running():
        done = some_pairs(contender, intruder, names, clock() + seconds)
    return span.figures(done, intruder, watch)


def some_pairs(contender: Contender, intruder: Intruder, names: list[str], until: float) -> Done:
    """Run pairs on each of the names in turn until a time of `clock`."""
    done, timer = Done(), time.perf_counter
    while clock() < until:
        resource, look = names[done.begun % len(names)], done.begun % LOOK_EVERY == 0
        done.begun += 1
        began = timer()
        try:
            held = contender.acquire(resource)
            if held is None:
                done.fail("refused, but no other client held the lock")
                continue
            taken = timer()
            if look:
                intruder.look(resource)
            leaving = timer()
            contender.release(held)
            done.seconds.append(timer() - leaving + taken - began)
        except Exception as error:  # noqa: BLE001 - any error is a failed pair
            done.fail(error)
    return done


def hot(contender: Contender, intruder: Intruder, *, seconds: float) -> dict[str, Any]:
    """Run pairs of this project without the kernel."""
    # Not above: other contenders run without this project.
    from benchmarks.worker.hot import hot as without_kernel

    return without_kernel(contender, seconds=seconds)


def refusals(
    contender: Contender,
    intruder: Intruder,
    *,
    seconds: float,
    warm_up: float = 0.2,
    own: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Try to acquire a lock that another process holds; success counts as an overlap.

    With `own`, another thread of this process holds it. A contender that knows its own locks passes
    for another process by what its `elsewhere` returns.
    """
    resource = name("held", 0)
    with holding(contender if own else elsewhere(contender), resource):
        intruder.look(resource)
        _refusals(contender, intruder, resource, clock() + warm_up)
        watch, span = Profile(profile), Span()
        with watch.running():
            done = _refusals(contender, intruder, resource, clock() + seconds)
        return span.figures(done, intruder, watch)


def elsewhere(contender: Any) -> Any:
    """Return what acquires locks as another process would."""
    return contender.elsewhere() if hasattr(contender, "elsewhere") else contender


def _refusals(contender: Contender, intruder: Intruder, resource: str, until: float) -> Done:
    done = Done()
    while clock() < until:
        began = time.perf_counter()
        held = contender.acquire(resource)
        done.seconds.append(time.perf_counter() - began)
        if held is not None:
            intruder.overlaps += 1
            contender.release(held)
    intruder.looks += len(done.seconds)
    return done


@contextmanager
def holding(contender: Contender, resource: str) -> Iterator[threading.Event]:
    """Hold a resource in another thread until the event is set or the block ends."""
    taken, enough = threading.Event(), threading.Event()

    def hold() -> None:
        held = contender.wait(resource)
        taken.set()
        enough.wait()
        contender.release(held)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    if not taken.wait(30):
        raise RuntimeError(f"{resource} was not acquired within 30 s")
    try:
        yield enough
    finally:
        enough.set()
        holder.join()


def threads(
    contender: Contender,
    intruder: Intruder,
    *,
    count: int,
    seconds: float,
    warm_up: float = 0.2,
    profile: bool = False,
    process: int = 0,
) -> dict[str, Any]:
    """Run pairs in many threads, each with its own keys, also among several processes."""
    start = threading.Barrier(count + 1)
    watch = Profile(profile)
    done = Done()
    until = 0.0
    mine = threading.Lock()

    def work(place: int) -> None:
        names = [name(f"{process:02}t{place:02}", key) for key in range(4)]
        with intruder.another() as looker:
            some_pairs(contender, looker, names, clock() + warm_up)
            start.wait()
            start.wait()
            with (watch if place == 0 else Profile(False)).running():
                ours = some_pairs(contender, looker, names, until)
        with mine:
            done.take(ours)
            intruder.looks += looker.looks
            intruder.overlaps += looker.overlaps

    workers = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(count)]
    for worker in workers:
        worker.start()
    start.wait()
    until, span = clock() + seconds, Span()
    start.wait()
    for worker in workers:
        worker.join()
    return span.figures(done, intruder, watch)


def drain(
    contender: Contender, intruder: Intruder, *, folder: str, seconds: float, waiters: int = 8
) -> dict[str, Any]:
    """Repeatedly let waiters queue behind a holder and take one turn of 1 ms each."""
    gate, gaps = Turnstile(f"{folder}/turn"), []
    began, drains = clock(), 0
    while clock() < began + seconds or drains < 2:
        resource, drains = name("drain", drains % KEYS), drains + 1
        turns: list[tuple[float, float]] = []  # taken, leaving

        def turn(resource: str = resource, turns: list[tuple[float, float]] = turns) -> None:
            held = contender.wait(resource)
            taken = clock()
            with gate:
                time.sleep(0.001)
            turns.append((taken, clock()))
            contender.release(held)

        queue = [threading.Thread(target=turn, daemon=True) for _ in range(waiters)]
        with holding(contender, resource) as enough:
            for waiter in queue:
                waiter.start()
            time.sleep(0.05)  # until all of them wait
            left = clock()
            enough.set()
        for waiter in queue:
            waiter.join()
        for taken, leaving in sorted(turns):
            gaps.append(taken - left)
            left = leaving
    return {
        **latencies(gaps),
        "turns": len(gaps),
        "looks": len(gaps),
        "overlaps": gate.overlaps,
    }


def connect(contender: Contender, intruder: Intruder) -> dict[str, Any]:
    """Connect to the masters, by a lock that no other process asks for."""
    contender.release(contender.wait(name("turns", os.getpid())))
    return {}


def turns(
    contender: Contender,
    intruder: Intruder,
    *,
    folder: str,
    start: float,
    end: float,
    pause: float,
) -> dict[str, Any]:
    """Take turns of 1 ms with other processes; `start` and `end` are times of `clock`.

    Returns each turn as [asked, taken, leaving].
    """
    gate, resource = Turnstile(f"{folder}/turn"), name("turns", 0)
    ours: list[list[float]] = []
    time.sleep(max(0.0, start - clock()))
    while (asked := clock()) < end:
        held = contender.wait(resource)
        taken = clock()
        with gate:
            time.sleep(0.001)
        leaving = clock()
        contender.release(held)
        ours.append([asked, taken, leaving])
        if pause:
            time.sleep(pause)
    return {"turns": ours, "looks": len(ours), "overlaps": gate.overlaps}


def under_faults(
    contender: Contender, intruder: Intruder, *, seconds: float, down: int = 0
) -> dict[str, Any]:
    """Run pairs while the first `down` masters fail; return each as [began, took, done]."""
    events: list[list[Any]] = []
    until, place = clock() + seconds, 0
    while (began := clock()) < until:
        resource = name("fault", len(events) % KEYS)
        look = down if place % KEYS == 0 else None
        took, done = _one(contender, intruder, resource, look)
        place += done
        events.append([began, took, done])
    return {"events": events, "looks": intruder.looks, "overlaps": intruder.overlaps}


def _one(
    contender: Contender, intruder: Intruder, resource: str, down: int | None
) -> tuple[float, bool]:
    began = time.perf_counter()
    taken = began
    try:
        held = contender.acquire(resource)
        taken = leaving = time.perf_counter()
        if held is None:
            return taken - began, False
        if down is not None:
            intruder.look(resource, down)
            leaving = time.perf_counter()
        contender.release(held)
    except Exception:  # noqa: BLE001 - any error is a failed pair
        return time.perf_counter() - began, False
    return time.perf_counter() - leaving + taken - began, True


def name(kind: str, place: int) -> str:
    """Return a resource; all names have the same length, so that all contenders send as much."""
    return f"bench:{kind:>5}:{place:04}".replace(" ", "-")


def requests(contender: Any, intruder: Intruder, **how: Any) -> dict[str, Any]:
    """Run requests to a site; only in the project's environment."""
    from benchmarks.site import crowds

    return crowds.requests(contender, intruder, **how)


def payments(contender: Any, intruder: Intruder, **how: Any) -> dict[str, Any]:
    """Run idempotent payments; only in the project's environment."""
    from benchmarks.site import payments as site

    return site.payments(contender, intruder, **how)
