"""The masters of the campaign: network namespaces with a server and a clock of its own each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.live.clocks import Clock
from tests.live.network import Host, hosts_of


class Machine(Host):
    """A host whose server reads a clock that faults set."""

    clock: Clock
    shim: Path

    @property
    def here(self) -> str:
        """The address of this end of the cable."""
        return self._here

    def restart(self) -> None:
        """Start the server again; it loads what it has saved, and nothing else."""
        self.start(LD_PRELOAD=str(self.shim), CLOCK_SHIFT=str(self.clock.path))
        self.wait_ready()


@contextmanager
def machines(number: int, shim: Path) -> Iterator[list[Machine]]:
    """Start machines, and delete them after the block."""
    with ExitStack() as stack:
        made = stack.enter_context(hosts_of(Machine, number))
        for machine in made:
            machine.shim, machine.clock = shim, Clock(machine.directory / "clock")
            machine.kill()
            machine.restart()
        yield made
