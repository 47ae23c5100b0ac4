"""Opening the connection of a link: check the server, and ask whether it is trusted."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import COMMANDS, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.trust_marker import Join
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.info import run_of
from redlock_django.wire.servers.probe import ErrorReply, Probe, Words
from redlock_django.wire.servers.trust import Joined, Trust, Unmarked, check, read_trust

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Probes of an idle connection, in seconds: routers forget one after as little as two minutes."""


def join(
    address: Address,
    deployment: Deployment,
    membership: Membership,
    tolerate: frozenset[str],
    timeout: float,
) -> Joined:
    """Connect to a master, check it and ask for its trust. Raises Unfit.

    `timeout` is in seconds, for each step.
    """
    with Probe(address, timeout) as probe:
        inspected = clock()
        info = probe.info()
        warnings = check(info, tolerate)
        run_id = run_of(info)
        trust = _ask_for_trust(probe, address.name, run_id, deployment, membership)
        pushes = address.kwargs.get("protocol") != 2 and speaks_resp3(probe)
        taken = probe.take()
    if taken.family in (socket.AF_INET, socket.AF_INET6):
        _keep_alive(taken, address.kwargs.get("socket_keepalive_options") or {})
    return Joined(taken, run_id, trust, warnings, inspected, pushes)


def _ask_for_trust(
    probe: Probe, name: str, run_id: str, deployment: Deployment, membership: Membership
) -> Trust:
    """Load all scripts, and run join.lua; mark the master if this client may do that.

    Raises Unfit.
    """
    scripts = (*(command.name for command in COMMANDS), Join.name)
    loaded: list[Words] = [("SCRIPT", "LOAD", script(each, deployment)[0]) for each in scripts]
    while True:
        sent = clock()
        mode = "mark" if membership.may_mark(sent) else "join"
        query = Join(
            deployment=deployment, run_id=run_id, mode=mode, fingerprint=membership.fingerprint
        )
        reply = probe.run(query, *loaded)
        try:
            return read_trust(membership, name, run_id, reply, sent, clock())
        except Unmarked:
            # Its marker may have been the last one that had to be known before one is written.
            if not membership.may_mark(clock()):
                raise
        loaded = []


def _keep_alive(taken: socket.socket, given: Mapping[int, int]) -> None:
    """Make the kernel probe an idle connection; options from the settings are not changed."""
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has them
        if option is not None and option not in given:
            taken.setsockopt(socket.IPPROTO_TCP, option, value)


def speaks_resp3(probe: Probe) -> bool:
    """Switch a server to RESP3; return False if it does not support it. Raises Unfit."""
    try:
        (answer,) = probe.ask(("HELLO", 3))
    except ErrorReply:
        return False
    return isinstance(answer, dict)
