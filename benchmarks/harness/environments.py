"""The environments of the peers in `.peers/`, created at first use.

Peers are never installed into the project's environment, so that the project cannot use them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
HOME = FOLDER / ".peers"

PYTHON = ["redlock-py", "pottery", "python-redis-lock", "redis", "hiredis"]
PYTHON39 = ["aioredlock"]
NODE = ["redlock@5.0.0-beta.2", "ioredis@5"]


class Missing(Exception):
    """An environment cannot be created on this machine; the message says why."""


@cache
def program(environment: str) -> list[str]:
    """Return the command that starts a worker in an environment. Raises `Missing`."""
    if environment == "node":
        return [_tool("node", "Node.js"), str(_node() / "node_redlock.mjs")]
    if environment == "python":
        python = _python("python", sys.executable, PYTHON)
    elif environment == "python39":
        python = _python("python39", _old_python(), PYTHON39)
    else:
        python = sys.executable
    return [python, "-m", "benchmarks.worker"]


@cache
def versions(environment: str) -> dict[str, str]:
    """Return the versions of the requested packages in an existing environment."""
    if environment == "node":
        folder = HOME / "node" / "node_modules"
        names = ["redlock", "ioredis"]
        found = {name: json.loads((folder / name / "package.json").read_text()) for name in names}
        return {name: about["version"].lstrip("v") for name, about in found.items()}
    listed = _run(_uv("pip", "list", "--format", "json", "--python", program(environment)[0]))
    wanted = {*PYTHON, *PYTHON39}
    return {each["name"]: each["version"] for each in json.loads(listed) if each["name"] in wanted}


def _python(name: str, interpreter: str, packages: list[str]) -> str:
    folder = HOME / name
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(_uv("venv", "-q", "--python", interpreter, str(folder)))
        _run(_uv("pip", "install", "-q", "--python", str(python), *packages))
        (folder / "made").write_text("\n".join(packages) + "\n")
    return str(python)


def _old_python() -> str:
    """Return an interpreter for aioredis 1, which needs the asyncio of Python 3.9."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in sorted(pyenv.glob("3.9.*/bin/python")):
        return str(found)
    return "3.9"  # uv finds or downloads it


def _node() -> Path:
    folder = HOME / "node"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}\n')
        _run([_tool("npm", "npm"), "install", "--silent", "--prefix", str(folder), *NODE])
        (folder / "made").write_text("\n".join(NODE) + "\n")
    # Node looks for modules next to the program.
    shutil.copy(FOLDER / "peers" / "node_redlock.mjs", folder)
    return folder


def _uv(*words: str) -> list[str]:
    return [_tool("uv", "uv"), *words]


def _tool(name: str, title: str) -> str:
    if found := shutil.which(name):
        return found
    raise Missing(f"{title} is not installed")


def _run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Missing(f"{' '.join(words[:3])} failed: {last.strip()}")
    return done.stdout
