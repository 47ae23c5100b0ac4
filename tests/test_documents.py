"""Every link and every path that a document names exists."""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import redlock_django
from redlock_django import exceptions

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    if ".venv" not in path.parts
)
# Where a path in code font may start, besides the folder of its document.
BASES = (".", "redlock_django", "redlock_django/management", "redlock_django/templates")
# The site and the app that readers create.
ELSEWHERE = ("site1/", "shop/")
# Names the files of the commit that was measured.
RECORDS = {ROOT / "docs/benchmarks.md"}
# As `wc -w` counts them, about 500 above what they had when they were last shortened.
MOST_WORDS = 65_200
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|md|lua|toml|css|js|html)|(?:[\w-]+/)+)(?:::\w+)?`"
)
SYMBOL = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.py)::([\w.]+)`")
TESTED = re.compile(r'^\[[^\]]+\]: (\S+\.py) "(\w+)"$', re.MULTILINE)
DIAGRAM = re.compile(r"```mermaid\n(.*?)```\n", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def _anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _links(path: Path) -> list[str]:
    links = LINK.findall(FENCE.sub("", path.read_text()))
    return [link for link in links if not re.match(r"https?:|mailto:", link)]


def test_every_link_resolves() -> None:
    broken = []
    for document in DOCUMENTS:
        for link in _links(document):
            name, _, anchor = link.partition("#")
            target = (document.parent / name).resolve() if name else document
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{document.relative_to(ROOT)}: {link}")
    assert not broken


def test_every_diagram_has_its_picture() -> None:
    """The site shows the pictures; `python -m tests.browser.picture diagrams` makes them."""
    pictures = {path.stem for path in (ROOT / "docs/images").glob("diagram-*.svg")}
    blocks = [b for path in DOCUMENTS for b in DIAGRAM.findall(path.read_text())]
    assert pictures == {f"diagram-{hashlib.sha256(b.encode()).hexdigest()[:8]}" for b in blocks}
    for name in pictures:
        ET.fromstring((ROOT / f"docs/images/{name}.svg").read_text())  # valid XML


def test_every_path_in_code_font_exists() -> None:
    missing = []
    for document in [path for path in DOCUMENTS if path not in RECORDS]:
        bases = [document.parent, *(ROOT / base for base in BASES)]
        paths = PATH.findall(FENCE.sub("", document.read_text()))
        ours = [path for path in paths if not path.startswith(ELSEWHERE)]
        gone = [path for path in ours if not any((base / path).exists() for base in bases)]
        missing += [f"{document.relative_to(ROOT)}: {path}" for path in gone]
    assert not missing


@cache
def symbols_of(path: Path) -> set[str]:
    """Return the dotted names of the classes, functions, variables and attributes of a file."""
    found: set[str] = set()

    def add(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    add(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [name for target in targets for name in ast.walk(target)]
                found.update(prefix + name.id for name in names if isinstance(name, ast.Name))

    add(ast.parse(path.read_text()).body, "")
    return found


def test_every_symbol_in_code_font_exists() -> None:
    missing = []
    for document in DOCUMENTS:
        for path, name in SYMBOL.findall(FENCE.sub("", document.read_text())):
            files = [ROOT / base / path for base in BASES if (ROOT / base / path).is_file()]
            if not any(name in symbols_of(file) for file in files):
                missing.append(f"{document.relative_to(ROOT)}: {path}::{name}")
    assert not missing


def test_the_tests_that_cells_of_tables_link_to_exist() -> None:
    missing = []
    for document in DOCUMENTS:
        for path, name in TESTED.findall(document.read_text()):
            if name not in symbols_of((document.parent / path).resolve()):
                missing.append(f"{document.relative_to(ROOT)}: {path}::{name}")
    assert not missing


def test_the_index_lists_every_document() -> None:
    index = ROOT / "docs/index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    decisions = ROOT / "docs/explanation/decisions/README.md"
    listed |= {(decisions.parent / link).resolve() for link in _links(decisions)}
    assert {*ROOT.glob("docs/**/*.md")} - {index} <= listed


def test_the_documents_do_not_grow_past_what_a_reader_needs() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("[A-Z]*.md")]
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in pages}
    longest = sorted(words, key=words.__getitem__, reverse=True)[:5]
    total = sum(words.values())
    assert total <= MOST_WORDS, (
        f"The documents have {total:,} words, and {MOST_WORDS:,} are allowed. Shorten a page "
        "before you add to one: state what two pages state on one of them, and drop figures and "
        "history that nobody acts on. The longest: "
        + ", ".join(f"{page} ({words[page]:,})" for page in longest)
    )


def test_every_exception_that_a_page_names_is_exported() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    named = {name for name in exceptions.__all__ if re.search(rf"\b{name}\b", text)}
    assert named > {"LockLost", "StoreUnavailable"}
    assert named <= {*redlock_django.__all__}


def test_one_except_clause_works_for_every_store() -> None:
    """docs/how-to/lock.md: a lock in Redis may be moved to a database, and the code stays."""
    raised = re.search(r"# raises (.+)", (ROOT / "docs/how-to/lock.md").read_text())
    assert raised is not None
    caught = tuple(getattr(redlock_django, name) for name in raised[1].split(", "))
    for error in (exceptions.QuorumUnreachable, exceptions.StoreUnavailable):
        assert issubclass(error, caught)
