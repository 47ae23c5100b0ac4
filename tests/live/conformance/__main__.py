"""Install two libraries of others, serve a shop with each, and print what the runner says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redlock_django.conformance.__main__ import table
from redlock_django.conformance.config import read
from redlock_django.conformance.exchange import Service
from redlock_django.conformance.rules import NAMES, Result, run

HERE = Path(__file__).parent
NODE = ("express@5.1.0", "express-idempotency@1.0.6")
PYTHON = ("asgi-idempotency-header==0.2.0", "fastapi", "redis", "uvicorn")


@contextmanager
def serving(command: list[str | Path], folder: Path) -> Iterator[str]:
    """Run a server that prints its port, and yield its URL."""
    # express-idempotency prints a traceback for each refusal.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder
    ) as process:
        try:
            assert process.stdout
            port = process.stdout.readline().strip()
            assert port, f"{command} did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def express(folder: Path) -> list[str | Path]:
    """Install express-idempotency and return the command of its server."""
    subprocess.run(["npm", "install", "--silent", "--prefix", folder, *NODE], check=True)
    server = folder / "express.cjs"
    server.write_text((HERE / "express.cjs").read_text())
    return ["node", server]


def starlette(folder: Path) -> list[str | Path]:
    """Install asgi-idempotency-header and return the command of its server."""
    python = folder / "env/bin/python"
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, folder / "env"], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, *PYTHON], check=True)
    return [python, HERE / "starlette_site.py"]


PEERS = {NODE[1]: express, PYTHON[0]: starlette}


def results_of(peer: str) -> list[Result]:
    """Return what the runner says of the shop with a library."""
    config = read(HERE / "cases.toml", NAMES)
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        with serving(PEERS[peer](folder), folder) as url:
            return run(Service(url, config))


def main() -> None:
    """Print a table for each library."""
    for peer in PEERS:
        sys.stdout.write(f"\n{peer}\n\n" + "\n".join(table(results_of(peer))) + "\n")


if __name__ == "__main__":
    main()
