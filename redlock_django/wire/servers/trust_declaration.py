"""Declaring masters trusted, for `manage.py redlock_init`.

A master that is not known to have been up for long enough is not counted. Only its operator can
know that it is new and so cannot have forgotten a lock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from redlock_django.engine.membership import Sight, same_servers
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.trust_marker import Join, read_marker
from redlock_django.engine.quorum import quorum
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.info import run_of
from redlock_django.wire.servers.probe import Probe, reading
from redlock_django.wire.servers.trust import NotUpYet, Unfit, check, ready_in

CLOSED = ",closed"
"""The end of the fingerprint of a master that is between two deployments."""

_PAUSE = 0.25
"""Seconds between two attempts to read the state of a master that is not up yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """The state of a master, read without changing anything.

    `trusted` is whether its votes count now; `fingerprint` is the deployment fingerprint in its
    marker ("" if it has no marker), and `bound` whether that was written for this run of the
    server; `key` is one lock or fence that it holds ("" if it holds none).
    """

    address: Address
    run_id: str
    trusted: bool
    fingerprint: str
    bound: bool
    key: str


def read_states(
    addresses: Iterable[Address],
    deployment: Deployment,
    tolerate: frozenset[str],
    timeout: float,
    until: float,
) -> tuple[list[MasterState], list[str]]:
    """Return the states of the masters that can be used, and why the others cannot.

    Masters that are not up yet are asked again until that moment of our clock, unless another one
    has a fault that does not pass by waiting.
    """
    addresses = list(addresses)
    states: dict[Address, MasterState] = {}
    while True:
        faults, is_final = [], clock() >= until
        for address in addresses:
            if address in states:
                continue
            try:
                states[address] = read_state(address, deployment, tolerate, timeout)
            except Unfit as error:
                faults.append(f"{address.name} {error}")
                is_final = is_final or not isinstance(error, NotUpYet)
        if is_final or not faults:
            return [states[address] for address in addresses if address in states], faults
        time.sleep(_PAUSE)


def read_state(
    address: Address, deployment: Deployment, tolerate: frozenset[str], timeout: float
) -> MasterState:
    """Return the state of a master; `timeout` is in seconds for each answer. Raises Unfit."""
    with Probe(address, timeout) as probe:
        info = probe.info()
        check(info, tolerate)
        (marker,) = probe.ask(("GET", deployment.marker))
        with reading():
            known = read_marker(marker)
        run_id = run_of(info)
        left = ready_in(known, run_id, probe.time())
        return MasterState(
            address=address,
            run_id=run_id,
            trusted=left == 0,
            fingerprint=known.deployment if known else "",
            bound=left is not None,
            key=probe.stored_key(deployment),
        )


def declare(
    state: MasterState,
    deployment: Deployment,
    timeout: float,
    mode: Literal["trust", "mark", "reconfigure"],
    after: Sequence[MasterState] = (),
) -> float:
    """Write a master's marker; return the seconds until the master is trusted. Raises Unfit.

    "trust" means now, "mark" after RESTART_DELAY. "reconfigure" replaces the fingerprint of another
    deployment, and waits for the largest of the restart delays, so that every lock that was
    acquired with the old numbers has expired: the delays of this master and of all masters that it
    comes `after`.
    """
    delay, _ = drain_delay([s.fingerprint for s in (state, *after)], deployment.fingerprint)
    return _mark(state, deployment, deployment.fingerprint, delay, timeout, mode)


def close(state: MasterState, deployment: Deployment, timeout: float) -> None:
    """Write a marker with which no client, old or new, counts the master. Raises Unfit."""
    # Keep the old numbers: if this run breaks off here, the next declaration needs them.
    fingerprint = (state.fingerprint or deployment.fingerprint).removesuffix(CLOSED) + CLOSED
    _mark(state, deployment, fingerprint, 0, timeout, "reconfigure")


def drain_delay(old: Sequence[str], new: str) -> tuple[int, bool]:
    """Return the ms until no lock of the `old` fingerprints conflicts with the new one, and a bool.

    The bool is whether the masters change. A master that is added has never heard of the locks
    that are held. So even masters that forget nothing must wait until those locks have expired.
    """
    fingerprints = [
        dict(re.findall(r"(\w+)=(\w+)", fingerprint)) for fingerprint in (*filter(None, old), new)
    ]
    ttl, skew, delay = (
        max(int(numbers.get(key, 0)) for numbers in fingerprints)
        for key in ("ttl", "skew", "delay")
    )
    changed = len({numbers.get("masters") for numbers in fingerprints}) > 1
    return max(delay, ttl * 102 // 100 + 5 * skew if changed else 0), changed


def known_fingerprint(states: Sequence[MasterState], deployment: Deployment) -> str:
    """Return the fingerprint that a client has once it has read the markers of all masters."""
    sights = [Sight(0.0, s.run_id, s.fingerprint, s.bound) for s in states]
    return same_servers(deployment.fingerprint, sights)


def left_with_a_majority(states: Sequence[MasterState], new: str) -> str:
    """Return the fingerprint of a deployment that keeps a majority without these masters, or "".

    Its processes would go on to acquire and extend locks, whatever is written to these masters.
    """
    found = [state.fingerprint.removesuffix(CLOSED) for state in states if state.fingerprint]
    for old in {*found} - {new}:
        numbers = dict(re.findall(r"(\w+)=(\w+)", old))
        masters = int(numbers.get("n", 0))
        # Masters with the new marker were closed by an earlier run, which broke off.
        left = masters - found.count(old) - found.count(new)
        if left >= quorum(masters):
            return old
    return ""


def _mark(
    state: MasterState,
    deployment: Deployment,
    fingerprint: str,
    delay: int,
    timeout: float,
    mode: Literal["trust", "mark", "reconfigure"],
) -> float:
    query = Join(
        deployment=deployment,
        run_id=state.run_id,
        mode=mode,
        fingerprint=fingerprint,
        delay=delay * 1000,
    )
    with Probe(state.address, timeout) as probe:
        reply = probe.run(query)
    if reply.status == Status.MISMATCH:
        raise Unfit(f"its marker belongs to another deployment: {state.fingerprint!r}")
    left = ready_in(read_marker(reply.rest), state.run_id, reply.time)
    assert left is not None  # join.lua answers the marker of this run
    return left
