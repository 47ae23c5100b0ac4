"""Sphinx configuration: `uv run --group docs sphinx-build -W -n docs build/docs`."""  # noqa: INP001

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent

project = "redlock_django"
release = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["version"]
author = "redlock_django contributors"
project_copyright = f"2026, {author}"

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = []

html_theme = "furo"
html_title = f"redlock_django {release}"
html_copy_source = False

myst_heading_anchors = 4

ENTRY = re.compile(r"\[[^\]]+\]\((?!\.\./|https?:)([^)#]+)\.md\)")


def add_tables_of_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make the navigation of the links to pages, which stay plain Markdown for other readers."""
    if docname != "index":
        return
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        if pages := ENTRY.findall(section):
            caption = section.splitlines()[0].lstrip("# ")
            options = [":hidden:", f":caption: {caption}"]
            source[0] += "\n".join(["\n```{toctree}", *options, "", *pages, "```\n"])


def name_files_outside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace links to documents and folders that are not pages of this site by their paths."""
    folder = (DOCS / docname).parent

    def path_of(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS) or not (target.suffix == ".md" or target.is_dir()):
            return link[0]
        return f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)", path_of, source[0])


def replace_diagrams(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace diagrams by their pictures, so that no browser loads a script from a third party."""

    def picture_of(block: re.Match[str]) -> str:
        heading = re.findall(r"^#+ (.+)$", block.string[: block.start()], re.MULTILINE)[-1]
        name = hashlib.sha256(block[1].encode()).hexdigest()[:8]
        return f"![Diagram: {heading}](/images/diagram-{name}.svg)\n"

    source[0] = re.sub(r"```mermaid\n(.*?)```\n", picture_of, source[0], flags=re.DOTALL)


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_files_outside)
    app.connect("source-read", replace_diagrams)
    app.connect("source-read", add_tables_of_contents)
