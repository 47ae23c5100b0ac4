"""A changed list of masters while clients run: a rolling deploy, and the operator's command."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redlock_django.engine.protocol.trust_marker import read_marker
from redlock_django.engine.quorum import quorum
from tests.engine.world import EPOCH, Clock, SimulatedMaster

if TYPE_CHECKING:
    from tests.engine.clients import Client
    from tests.engine.simulator import Simulation

CHANGES = ("replaced", "grown", "shrunk")
"""The lists of new clients: another last master, two more masters, or two fewer."""


class ChangedList:
    """The list of masters that clients have which start after the deploy.

    `redlock_init --reconfigure` is run while the faults go on, or after them. Until then the new
    clients must not acquire anything that the old ones can acquire.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.old = simulation.deployment
        self.deployed = False
        self._rng = self.world.rng("change")
        names, change = self.old.names, simulation.setup.change
        if len(names) < (3 if change == "shrunk" else 2):
            change = "grown"  # two lists without a common master cannot know of each other
        keep = len(names) - {"replaced": 1, "grown": 0, "shrunk": 2}[change]
        more = {"replaced": 1, "grown": 2, "shrunk": 0}[change]
        added = tuple(f"m{len(names) + number}" for number in range(more))
        self.deployment = replace(self.old, names=(*names[:keep], *added))
        self.added = [
            self._master(keep + number, len(names) + number) for number in range(len(added))
        ]
        simulation.masters += self.added

    def _master(self, index: int, number: int) -> SimulatedMaster:
        """Return a new master, which has no marker."""
        off = self._rng.uniform(-1, 1) * 0.3 * self.simulation.setup.skew
        clock = Clock(self.world, EPOCH + off, 1.0)
        return SimulatedMaster(self.world, index, self.deployment, clock, number=number)

    @property
    def masters(self) -> list[SimulatedMaster]:
        """Return the masters of the new list."""
        names = self.deployment.names
        return [master for master in self.simulation.masters if master.name in names]

    def begin(self) -> None:
        """Schedule the deploy of each client and, in half of the seeds, the operator's command."""
        seconds = self.simulation.setup.seconds
        self.world.at(self._rng.uniform(0.1, 0.3) * seconds, self._deploy)
        for client in self.simulation.clients:
            if self._rng.random() < 0.6:
                self.world.at(self._rng.uniform(0.3, 0.9) * seconds, self._roll, client)
        for _ in range(self._rng.choice((0, 2, 4))):
            self.world.at(self._rng.uniform(0.2, 0.9) * seconds, self._black_out)
        if self._rng.random() < 0.5:
            self.world.at(self._rng.uniform(0.4, 0.8) * seconds, self._command)

    def _deploy(self) -> None:
        self.world.note("", "clients that start now have another list of masters")
        self.deployed = True
        self._start()

    def _start(self) -> None:
        """Start a client with the new list, which may not reach every master at first."""
        client = self.simulation._client()
        for line in client.lines:
            if self._rng.random() < 0.3:
                seconds = self._rng.uniform(0, 2 * self.old.restart_delay)
                self.simulation._cut(client, line, seconds, out=True, back=True)

    def _roll(self, client: Client) -> None:
        if not client.gone and len(self.simulation.clients) < 12:
            client.kill()
            self._start()

    def _black_out(self) -> None:
        """Empty many masters within milliseconds, as a power failure does."""
        masters = self.simulation.masters
        for master in self._rng.sample(masters, self._rng.randint(2, len(masters))):
            self.world.after(self._rng.uniform(0, 0.02), self._empty, master)

    def _empty(self, master: SimulatedMaster) -> None:
        if master.up and not self.simulation._calm:
            self.world.seen["emptied"] += 1
            self.world.note(master.name, "is emptied")
            master.flush()

    def _command(self) -> None:
        """Run `redlock_init --reconfigure`, which refuses unless every master answers."""
        if not all(one.up and not one.hung for one in self.masters):
            return
        self.world.note("", "the operator reconfigures the masters")
        self.world.seen["reconfigured"] += 1
        closed = [*self.masters]
        common = [name for name in self.old.names if name in self.deployment.names]
        if self.old.masters - len(common) >= quorum(self.old.masters):
            # The old clients would keep a majority: the masters that are removed are closed, too.
            closed += [one for one in self.simulation.masters if one not in closed]
        for master in closed:
            self._mark(master, self.old.fingerprint + ",closed")
        for master in self.masters:
            self._mark(master, self.deployment.fingerprint)

    def _mark(self, master: SimulatedMaster, fingerprint: str) -> None:
        master.join(master.run, "reconfigure", fingerprint)

    def complete(self) -> None:
        """End all clients with the old list, and run the command if it is needed (again)."""
        self.deployed = True
        simulation = self.simulation
        for client in simulation.living:
            if client.store.deployment.names != self.deployment.names:
                self._replace(client)
        simulation.deployment = self.deployment
        if any(self._fingerprint(one) != self.deployment.fingerprint for one in self.masters):
            self._command()

    def _fingerprint(self, master: SimulatedMaster) -> str:
        known = read_marker(master.memory.keyspace.get(self.deployment.marker))
        return known.deployment if known else ""

    def _replace(self, client: Client) -> None:
        client.kill()
        self.simulation._client()
