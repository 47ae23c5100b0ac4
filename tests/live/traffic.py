"""Threads that compete for a few locks and check for exclusion while masters fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol, Self

from redis import Redis

from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.validity import LeaseState, RedlockLease
from redlock_django.wire.clock import clock
from tests.waiting import until
from tests.wire.variants import Variant


class Server(Protocol):
    """A master on this machine or on another."""

    def client(self) -> Redis:
        """Return a new plain client."""


def left(masters: Sequence[Server]) -> list[str]:
    """Return the locks, and the members of the index, that any of these masters has."""
    found = []
    for master in masters:
        with master.client() as client:
            found += [key.decode() for key in client.scan_iter(match="redlock:lock:*")]
            found += [member.decode() for member in client.zrangebyscore("redlock:held", 0, "+inf")]
    return found


def all_freed(
    variants: Sequence[Variant],
    masters: Sequence[Server],
    *,
    links: float = 60.0,
    seconds: float = 20.0,
) -> None:
    """Wait up to `links` seconds for every link, and up to `seconds` for every release."""
    for variant in variants:
        variant.wait_usable(len(masters), links)
        variant.settle()
    until(
        lambda: not left(masters), f"all locks are deleted, left: {left(masters)}", seconds=seconds
    )


class Traffic:
    """Threads that compete for a few locks, sync and async, and check for exclusion.

    `wins` counts the locks that were acquired; `trouble` lists every violation and error.
    """

    def __init__(self, variants: Sequence[Variant], workers: int, resources: int) -> None:
        self.wins = 0
        self.trouble: list[str] = []
        self._inside: dict[str, tuple[str, float]] = {}
        self._fences: dict[str, tuple[str, int]] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(variants[n % len(variants)], f"{n}", resources),
                daemon=True,
            )
            for n in range(workers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for_wins(self, more: int, when: str, *, seconds: float = 90.0) -> None:
        """Wait until `more` locks were acquired; raise AssertionError after `seconds`."""
        enough = self.wins + more
        until(
            lambda: self.wins >= enough or self.trouble,
            f"{more} more locks acquired while {when}",
            seconds=seconds,
        )
        assert self.trouble == [], f"while {when}: {self.trouble}"

    def _hold(self, resource: str, who: str, lease: RedlockLease) -> None:
        """Note a holder, and check that no other one holds the lock or has got it later."""
        with self._guard:
            now, fence = clock(), lease.fences[0]
            if now >= lease.until:
                return  # this thread was stopped for longer than its lease: another one may hold it
            other, end = self._inside.get(resource, (who, 0.0))
            if other != who and now < end:
                self.trouble.append(f"{who} and {other} both hold {resource}")
            token, highest = self._fences.get(resource, ("", 0))
            if fence < highest or (fence == highest and token != lease.token):
                self.trouble.append(f"the fence of {who} for {resource} did not grow")
            self._fences[resource] = lease.token, fence
            self._inside[resource] = who, lease.until

    def _work(self, variant: Variant, who: str, resources: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            resource = f"order:{(turn + int(who)) % resources}"
            try:
                lease = variant.acquire(resource, ttl=1.0, wait=0.5)
            except NotAcquired:
                continue
            except BaseException as error:
                self.trouble.append(f"{who}: {error!r}")
                raise
            self._hold(resource, who, lease)
            if turn % 3 == 0:
                state, lease = variant.extend(lease, ttl=1.0)
                if state is LeaseState.LOST and clock() < lease.until:
                    self.trouble.append(f"{who} lost {resource}")
                elif state is LeaseState.RENEWED:
                    self._hold(resource, who, lease)
            with self._guard:
                if self._inside.get(resource, ("", 0.0))[0] == who:
                    del self._inside[resource]
                self.wins += 1
            variant.release(lease)
