"""Recordings of the bytes that redlock_django sends to each master, for playback.

`python -m benchmarks.floors.tape HOST:PORT...` acquires and releases a lock through proxies in
front of the masters, and prints the bytes that pass. So the floor always sends the bytes that the
project currently sends. A run records them once for each list of masters.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from socket import create_connection, create_server, socket

import hiredis

from redlock_django.engine.protocol.commands import script
from redlock_django.wire.link.resp import pack

RESOURCE = b"bench:-tape:0000"
"""The recorded resource; its name is as long as all names in the jobs."""

_TOKEN = re.compile(rb"\b([0-9a-f]{32}) \{")


class Tape:
    """The bytes of acquiring and releasing a lock, for each master, as `record` returns them."""

    def __init__(self, acquire: list[str], release: list[str]) -> None:
        self._acquire = [bytes.fromhex(data) for data in acquire]
        self._release = [bytes.fromhex(data) for data in release]
        found = _TOKEN.search(self._acquire[0])
        if found is None:
            raise RuntimeError("no token was found in what redlock_django sends")
        self._token = found[1]

    def trust(self, masters: list[tuple[str, int]]) -> None:
        """Store what the commands need on emptied masters: the marker that they name, and scripts.

        An acquire names the marker's key first, and its value last but one.
        """
        for place, data in zip(masters, self._acquire, strict=True):
            words = spoken(data)[0]
            with create_connection(place) as connected:
                for asked in (
                    ("SET", words[3], words[-2]),
                    ("SCRIPT", "LOAD", script("acquire")[0]),
                    ("SCRIPT", "LOAD", script("release")[0]),
                ):
                    connected.sendall(pack(*asked))
                    connected.recv(4096)

    def play(self, resource: str, token: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the bytes for another resource and another holder."""
        name = resource.encode()
        assert len(name) == len(RESOURCE)
        assert len(token) == len(self._token)

        def other(data: bytes) -> bytes:
            return data.replace(RESOURCE, name).replace(self._token, token)

        return [other(data) for data in self._acquire], [other(data) for data in self._release]


def spoken(data: bytes) -> list[list[bytes]]:
    """Return the commands in recorded bytes."""
    reader, found = hiredis.Reader(), []
    reader.feed(data)
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


def record(masters: list[tuple[str, int]]) -> dict[str, list[str]]:
    """Record in a separate process; the masters are trusted afterwards."""
    places = [f"{host}:{port}" for host, port in masters]
    # Through a file: the output of the process may hold more than lines of ours.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floors.tape", *places],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    said: dict[str, list[str]] = json.loads(done.stdout)
    return said


class Tap:
    """A proxy for one master that records what a client sends."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self.heard = bytearray()
        self._door = create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._door.accept()
            master = create_connection(self._place)
            for ends in ((client, master, self.heard), (master, client, None)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket, to: socket, heard: bytearray | None) -> None:
    while data := source.recv(65536):
        if heard is not None:
            heard += data
        to.sendall(data)


def main(places: list[str]) -> None:
    """Record a tape and print it as JSON."""
    from benchmarks.peers.ours import Threads

    taps = [Tap((place.rsplit(":", 1)[0], int(place.rsplit(":", 1)[1]))) for place in places]
    contender = Threads([("127.0.0.1", tap.port) for tap in taps])

    deadline = time.monotonic() + 30
    # A master that is still connecting, or slow, may get nothing; then record again.
    while time.monotonic() < deadline:
        acquire, release = [b""], [b""]
        with suppress(Exception):
            held = contender.acquire(RESOURCE.decode())
            acquire = heard(taps)
            contender.release(held)
            release = heard(taps)
        if all(len(spoken(data)) == 1 for data in (*acquire, *release)):
            said = {"acquire": acquire, "release": release}
            sys.stdout.write(json.dumps({k: [data.hex() for data in v] for k, v in said.items()}))
            return
    raise RuntimeError(
        "redlock_django no longer sends one command to each master to acquire and to release a "
        "lock: update benchmarks/floors for the commands that it sends now"
    )


def heard(taps: list[Tap]) -> list[bytes]:
    """Return the bytes sent to each master since the last call."""
    time.sleep(0.15)
    said = [bytes(tap.heard) for tap in taps]
    for tap in taps:
        tap.heard.clear()
    return said


if __name__ == "__main__":
    main(sys.argv[1:])
