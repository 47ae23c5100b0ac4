"""Change a piece of code of a Lua script for a while, to see which test fails.

A mutation is of a file of `engine/protocol/lua`: it changes every script that the file is a part
of, in memory and on real masters. Neither white space nor comments of a script matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

import pytest

from redlock_django.backends.memory import master
from redlock_django.engine.protocol import commands, query
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.links import replies, resp
from redlock_django.wire.servers import handshake

Source = Callable[..., tuple[str, str]]
SCRIPTS = {path.stem: path.read_text() for path in Path(commands.__file__).parent.glob("lua/*.lua")}


class Change(NamedTuple):
    """A piece of code, which must be there once, and what is put in its place."""

    target: str
    code: str


class Lua(NamedTuple):
    """Changes of the code of a file."""

    changes: tuple[Change, ...]


def lua(target: str, code: str = "", *more: tuple[str, str]) -> Lua:
    """Replace a piece of code, and more if they are given."""
    return Lua((Change(target, code), *(Change(*change) for change in more)))


def included(file: str) -> list[str]:
    """Return the files whose text is a part of a file."""
    parts = commands.INCLUDE.findall(SCRIPTS[file])
    return [*parts, *(each for part in parts for each in included(part))]


def mutated_source(file: str, mutation: Lua) -> Source:
    """Return what stands in for `commands.script`; raise LookupError if there is no such code."""
    honest = commands.script

    @cache
    def script(
        name: str, deployment: Deployment, *, failover: bool | None = None
    ) -> tuple[str, str]:
        text, digest = honest(name, deployment, failover=failover)
        if file != name and file not in included(name):
            return text, digest
        text = re.sub(r" *--.*", "", text)
        for change in mutation.changes:
            numbers = [commands.numbered(one, deployment.constants) for one in change]
            text = _changed(name, text, Change(*numbers))
        return text, sha1(text.encode(), usedforsecurity=False).hexdigest()

    users = [name for name in SCRIPTS if file in included(name)]
    for name in users or [file]:
        script(name, Deployment(names=("a",)))
    return script


def _changed(name: str, text: str, change: Change) -> str:
    words = re.findall(r"\w+|[^\w\s]", change.target)
    code = r"\s*".join(map(re.escape, words))
    if words[0][0].isalnum():
        code = rf"\b{code}"
    found = re.findall(code, text)
    if len(found) != 1:
        lines = [line.strip() for line in text.splitlines()]
        closest = get_close_matches(change.target, lines, 3, 0.0)
        shown = "".join(f"\n    {line}" for line in closest)
        raise LookupError(
            f"{name}.lua has {len(found)} times {change.target!r}; the closest:{shown}"
        )
    return re.sub(code, lambda _: change.code, text)


def replace_scripts(patch: pytest.MonkeyPatch, source: Source) -> None:
    """Make masters run the scripts that a function returns by name, with their hashes."""
    for module in (replies, commands, query, handshake, resp, master):
        patch.setattr(module, "script", source)


def mutate_script(patch: pytest.MonkeyPatch, file: str, mutation: Lua) -> None:
    """Change a file of the scripts that masters run."""
    replace_scripts(patch, mutated_source(file, mutation))


@contextmanager
def script_mutated(file: str, mutation: Lua) -> Iterator[None]:
    """Change a file of the scripts for a while."""
    with pytest.MonkeyPatch.context() as patch:
        mutate_script(patch, file, mutation)
        yield
