"""The documents as tests read them: blocks of code, lines for a shell, sections and tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Page:
    """One document, or a section of it."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        self.path = ROOT / name
        self.text = self.path.read_text() if text is None else text

    def section(self, heading: str) -> Page:
        """Return what is below a heading, up to the next one of its level."""
        found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", self.text, re.DOTALL | re.MULTILINE)
        assert found, f"{self.name} has no section {heading!r}"
        return Page(self.name, found[1])

    def blocks(self, kind: str = "python") -> list[str]:
        """Return the blocks of code of this kind."""
        return re.findall(rf"^```{kind}\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)

    @cached_property
    def prose(self) -> str:
        """The text without blocks of code."""
        return FENCE.sub("", self.text)

    def code(self, words: str) -> str:
        """Return the first block of Python after these words."""
        return Page(self.name, self.text[self.text.index(words) :]).blocks()[0]

    def shell(self, words: str) -> str:
        """Return the first lines to be pasted into a shell after these words."""
        found = re.search(r"\n\n((?: {4}.*\n)+)", self.text[self.text.index(words) :])
        assert found, f"{self.name} has no shell block after {words!r}"
        return dedent(found[1])

    def run(self, **names: Any) -> dict[str, Any]:
        """Execute all blocks as one module, in which these names exist; return its names."""
        for block in self.blocks():
            exec(block, names)
        return names

    def rows(self) -> list[list[str]]:
        """Return the cells of each row of the tables, without their headings."""
        bodies = re.sub(r"^\|.*\n(?=\|--)", "", self.prose, flags=re.MULTILINE).replace(
            "| |", "|  |"
        )
        lines = re.findall(r"^\| (.*) \|$", bodies, re.MULTILINE)
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]

    def first_cells(self) -> str:
        return " ".join(row[0] for row in self.rows())


ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
}
"""Of programs that a page starts: this Python, the package as it is here, and no settings."""


def paste(lines: str, where: Path, *options: str) -> str:
    """Paste lines into a shell, and return what it shows; fail if the last one fails."""
    # The shell reads the lines from stdin, as from a terminal: no command may read them.
    done = subprocess.run(
        ["bash", *options], input=lines, cwd=where, env=ENVIRONMENT, timeout=90, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
