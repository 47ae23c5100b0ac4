"""Documents and docstrings name what exists: links, paths, symbols, settings, checks, commands."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.core.management import get_commands, load_command_class

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
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|md|lua|toml|css|js|html)|(?:[\w-]+/)+)(?:::\w+)?`"
)
SYMBOL = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.py)::([\w.]+)`")
TESTED = re.compile(r'^\[[^\]]+\]: (\S+\.py) "(\w+)"$', re.MULTILINE)
DIAGRAM = re.compile(r"```mermaid\n(.*?)```\n", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


CODE = re.compile(r"`([^`]+)`")
CHECK = re.compile(r"\b[EW]0\d\d\b")
COMMAND = re.compile(r"manage\.py (\w+)((?: +[^\s`'\"|;&)]+)*)")
DOTTED = re.compile(r"\bredlock_django(?:\.\w+)+(?![\w{])")
# Names of servers, frameworks and libraries, which no code of this project has.
OF_OTHERS = {
    "acks_late", "add_signal_handler", "auto_release_time", "auto_renewal", "blocking_timeout",
    "body__startswith", "cache_page",
    "context_manager_blocking", "context_manager_timeout",
    "idle_in_transaction_session_timeout", "list_editable", "replace_ttl", "reset_all",
    "save_model", "save_related", "sync_binlog", "tcp_keepalives_idle", "COMMAND_OK",
    "CONFLICT_STATUS_CODE", "DATA_UPLOAD_MAX_NUMBER_FIELDS", "ENDPOINTS", "ER_LOCK_NOWAIT",
    "ER_LOCK_WAIT_TIMEOUT", "EXCEPTION_HANDLER", "EX_TEMPFAIL", "GETSET", "MAJOR", "MINOR",
    "MONITOR", "NOTIFY", "POSTPROCESSING_HOOKS", "REGISTRY", "RELOAD", "RESETSTAT", "SETINFO",
    "SLOWLOG", "SPECTACULAR_SETTINGS", "SQLITE_LOCKED", "TUPLES_OK",
}  # fmt: skip
# Commands of other apps, or that an example of a document defines.
COMMANDS = {"pglock", "send_reports"}
# Salts of signatures, a logger, and the form of the ids of checks.
OTHER_DOTTED = {
    "redlock_django.idempotency.seed", "redlock_django.ticket", "redlock_django.ticket.token",
    "redlock_django.zookeeper", "redlock_django.E0xx",
}  # fmt: skip


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
    for document in DOCUMENTS:
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


def _sources(*folders: str) -> Iterator[Path]:
    """Yield the files with code in these folders."""
    kinds = {".py", ".lua", ".html", ".js", ".mjs", ".pml", ".yml", ""}
    for path in (path for folder in folders for path in ROOT.glob(f"{folder}/**/*")):
        if path.is_file() and path.suffix in kinds and "__pycache__" not in path.parts:
            yield path


@cache
def _parts(path: Path) -> tuple[str, frozenset[str]]:
    """Return the docstrings and comments of a file, and the words of its code."""
    text = path.read_text()
    if path.suffix != ".py" or path.is_relative_to(ROOT / "tests"):  # of 70,000 lines
        return "", frozenset(re.findall(r"\w+", text))
    prose, words, lines = [], set[str](), set[int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                prose.append(docstring)
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose.append(token.string)
        elif token.start[0] not in lines:
            words.update(re.findall(r"\w+", token.string))
    return "\n".join(prose), frozenset(words)


def _names_in_code_font(text: str) -> set[str]:
    """Return the words in code font that no prose has: with an underscore, or in capitals."""
    words = {word for code in CODE.findall(text) for word in re.findall(r"\w+", code)}
    words = {one for one in words if "_" in one.strip("_") or (one.isupper() and len(one) > 3)}
    return {word.removesuffix("_total") for word in words if not word.endswith("_")}


def _words_of(*folders: str) -> set[str]:
    """Return the words of the code in these folders, the names of its files, metrics and checks."""
    files = [*_sources(*folders)]
    known = {path.stem for path in files}.union(*(_parts(path)[1] for path in files))
    return known | _checks() | {line.split("_total")[0].split(" ")[1] for line in _public()}


def _unknown(path: Path, names: set[str], known: set[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {name}" for name in sorted(names - known - OF_OTHERS)]


@pytest.mark.slow
def test_every_name_in_code_font_exists() -> None:
    """A setting, argument, attribute or field that has gone is in no code any more."""
    known = _words_of("redlock_django", "testproject", "benchmarks", "tests", ".ci", ".github")
    missing = []
    for document in [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]:
        names = _names_in_code_font(FENCE.sub("", document.read_text()))
        missing += _unknown(document, names, known)
    assert not missing


def test_every_name_in_docstrings_and_comments_exists() -> None:
    known = _words_of("redlock_django", "testproject", "benchmarks")
    known |= {path.stem for path in _sources("tests")}
    missing = []
    for path in _sources("redlock_django", "testproject"):
        prose, _ = _parts(path)
        names = _names_in_code_font(prose) | {*re.findall(r"\b[A-Z]+_[A-Z_]+\b", prose)}
        missing += _unknown(path, names, known)
        named = re.findall(r"\b(?:docs|tests)/[\w./-]+\.(?:md|py)", prose)
        missing += [f"{path.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert not missing


@cache
def _public() -> list[str]:
    return (ROOT / "docs/reference/public-names.txt").read_text().splitlines()


def _checks() -> set[str]:
    """Return the numbers of the system checks."""
    lines = [line for line in _public() if line.startswith("check ")]
    return {line.rpartition(".")[2] for line in lines}


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield the documents, and the files of the package with their strings."""
    yield from ((path, path.read_text()) for path in DOCUMENTS if path.name != "CHANGELOG.md")
    yield from ((path, path.read_text()) for path in _sources("redlock_django", "testproject"))


def test_every_check_that_is_named_exists() -> None:
    found = {(path.name, one) for path, text in _texts() for one in CHECK.findall(text)}
    assert not {pair for pair in found if pair[1] not in _checks()}


def test_every_module_and_name_of_the_package_that_is_named_exists() -> None:
    others = OTHER_DOTTED | {line.split(" ")[1] for line in _public()}  # checks, permissions
    named = {(path.name, name) for path, text in _texts() for name in DOTTED.findall(text)}
    assert not {pair for pair in named if not (pair[1] in others or _exists(pair[1]))}


def _exists(dotted: str) -> bool:
    """Return whether a name is that of a module, or of an attribute of one."""
    module, _, attributes = dotted, "", list[str]()
    while True:
        try:
            found: object = import_module(module)
            break
        except ImportError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
    for attribute in attributes:
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True


def test_every_command_and_option_that_is_named_exists() -> None:
    missing = []
    for path, text in _texts():
        for name, arguments in COMMAND.findall(text):
            if name not in get_commands().keys() | COMMANDS:
                missing.append(f"{path.relative_to(ROOT)}: {name}")
            elif get_commands().get(name) == "redlock_django":
                parser = load_command_class("redlock_django", name).create_parser("manage.py", name)
                options = re.findall(r"--[a-z][\w-]*", arguments.split(" -- ")[0])
                unknown = {*options} - {*parser._option_string_actions}
                missing += [f"{path.relative_to(ROOT)}: {name} {one}" for one in unknown]
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
    decisions = ROOT / "docs/contributing/decisions/README.md"
    listed |= {(decisions.parent / link).resolve() for link in _links(decisions)}
    assert {*ROOT.glob("docs/**/*.md")} - {index} <= listed


def test_every_exception_that_a_page_names_is_exported() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    named = {
        name for name in exceptions.__all__ if re.search(rf"(?<!exceptions\.)\b{name}\b", text)
    }
    assert named > {"LockLost", "StoreUnavailable"}
    assert named <= {*redlock_django.__all__}


def test_one_except_clause_works_for_every_store() -> None:
    """docs/how-to/lock.md: a lock in Redis may be moved to a database, and the code stays."""
    raised = re.search(r"# raises (.+)", (ROOT / "docs/how-to/lock.md").read_text())
    assert raised is not None
    caught = tuple(getattr(redlock_django, name) for name in raised[1].split(", "))
    for error in (exceptions.QuorumUnreachable, exceptions.StoreUnavailable):
        assert issubclass(error, caught)
