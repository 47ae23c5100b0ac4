"""Documents and docstrings name what exists, and pages list all of what they are a reference of."""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import json
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from django.contrib.auth.models import Permission
from django.core.management import get_commands, load_command_class
from django.dispatch import Signal

import redlock_django
from redlock_django import exceptions, signals, testing
from redlock_django.backends.base import BaseBackend
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.conf.settings import DEFAULTS
from redlock_django.engine.protocol import commands
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.idempotency.refusals import REFUSALS
from redlock_django.idempotency.settings import DEFAULTS as IDEMPOTENCY
from redlock_django.locking.reports import counter_types
from redlock_django.management.child_process import NOT_EXECUTABLE, NOT_FOUND
from redlock_django.management.single_run import LOCK_HELD, LOCK_LOST
from redlock_django.web.answers import problem_of, problem_type
from tests import api_page
from tests.matrix import PYTHONS
from tests.pages import FENCE, ROOT, Page
from tests.public_names import LIST, public_names

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
CODE = re.compile(r"`([^`]+)`")
CHECK = re.compile(r"\b[EW]0\d\d\b")
COMMAND = re.compile(r"manage\.py (\w+)((?: +[^\s`'\"|;&)]+)*)")
DOTTED = re.compile(r"\bredlock_django(?:\.\w+)+(?![\w{])")
# Names of servers, frameworks and libraries, which no code of this project has.
OF_OTHERS = {
    "acks_late", "add_signal_handler", "auto_release_time", "auto_renewal", "blocking_timeout",
    "body__startswith", "cache_page", "context_manager_timeout",
    "idle_in_transaction_session_timeout", "list_editable", "post_fork", "replace_ttl",
    "reset_all", "tcp_keepalives_idle", "COMMAND_OK", "ER_LOCK_NOWAIT", "ER_LOCK_WAIT_TIMEOUT",
    "EX_TEMPFAIL", "EXCEPTION_HANDLER", "MONITOR", "POSTPROCESSING_HOOKS", "REGISTRY", "RELOAD",
    "SETINFO", "SLOWLOG", "SPECTACULAR_SETTINGS", "SQLITE_LOCKED", "TUPLES_OK",
}  # fmt: skip
# Commands of packages that a page compares with this one.
COMMANDS = {"pglock"}
# Salts of signatures, a logger, and the form of the ids of checks.
OTHER_DOTTED = {
    "redlock_django.idempotency.seed", "redlock_django.ticket", "redlock_django.zookeeper",
    "redlock_django.E0xx",
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


def test_every_symbol_and_test_that_is_named_exists() -> None:
    missing = []
    for document in DOCUMENTS:
        for path, name in SYMBOL.findall(FENCE.sub("", document.read_text())):
            files = [ROOT / base / path for base in BASES if (ROOT / base / path).is_file()]
            if not any(name in symbols_of(file) for file in files):
                missing.append(f"{document.relative_to(ROOT)}: {path}::{name}")
        for path, name in TESTED.findall(document.read_text()):  # of cells of tables
            if name not in symbols_of((document.parent / path).resolve()):
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


@pytest.mark.slow
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
    return LIST.read_text().splitlines()


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


def test_the_index_lists_every_document() -> None:
    index = ROOT / "docs/index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    assert {*ROOT.glob("docs/**/*.md")} - {index} <= listed


def test_one_except_clause_works_for_every_store() -> None:
    """docs/how-to/lock.md: a lock in Redis may be moved to a database, and the code stays."""
    raised = re.search(r"# raises (.+)", Page("docs/how-to/lock.md").text)
    assert raised is not None
    caught = tuple(getattr(redlock_django, name) for name in raised[1].split(", "))
    for error in (exceptions.QuorumUnreachable, exceptions.StoreUnavailable):
        assert issubclass(error, caught)


# What pages list.

COMMANDS_PAGE, SETTINGS_PAGE, ERRORS_PAGE, KEYS_PAGE = (
    Page(f"docs/reference/{name}.md") for name in ("commands", "settings", "errors", "idempotency")
)
WITH_LOCK = (LOCK_HELD, LOCK_LOST, NOT_EXECUTABLE, NOT_FOUND)


def _parameters(function: Callable[..., Any], *but: str) -> set[str]:
    return {*inspect.signature(function).parameters} - {*but}


def _signals() -> set[str]:
    return {name for name, value in vars(signals).items() if isinstance(value, Signal)}


def _capabilities() -> set[str]:
    """Return the attributes by which a store says what it can do."""
    found = {name for name, value in vars(BaseBackend).items() if type(value) in {bool, int}}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/how-to/views.md", _parameters(redlock_django.lock_resource, "templates")),
        ("docs/how-to/observe.md", _signals() | {*counter_types()}),
        ("docs/how-to/testing.md", {*testing.__all__} - {"LocalMaster"}),
        ("docs/how-to/permits.md", {"limit", "lock_limit", "--limit"}),
    ],
)
def test_a_page_names_all_of_its_subject(page: str, names: set[str]) -> None:
    code = "\n".join([*CODE.findall(Page(page).prose), *Page(page).blocks()])
    assert names - {*re.findall(r"(?:--)?\w+", code)} == set()


def test_every_capability_of_a_store_is_described() -> None:
    flags, prose = _capabilities(), Page("docs/contributing/write-a-store.md").prose
    assert "hands_on" in flags
    assert {name for name in flags if f"`{name}`" not in prose} == set()


def _commands() -> set[str]:
    return {name for name, app in get_commands().items() if app == "redlock_django"}


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (COMMANDS_PAGE, _commands()),
        (SETTINGS_PAGE.section("REDLOCK"), RedlockSettings.DEFAULTS.keys() | DEFAULTS.keys()),
        (SETTINGS_PAGE.section("IDEMPOTENCY"), {*IDEMPOTENCY}),
        (KEYS_PAGE.section("Arguments"), _parameters(redlock_django.idempotent, "view")),
        (Page("docs/reference/checks.md"), _checks()),
    ],
    ids=["commands", "settings", "settings of idempotency", "arguments of idempotent", "checks"],
)
def test_a_table_lists_all_of_its_subject(table: Page, names: set[str]) -> None:
    listed = re.findall(r"`(\w+)`", table.first_cells())
    assert len(listed) == len({*listed})
    assert {*listed} == {*names}


WORDS = {"a day": timedelta(days=1), "1 MiB": 1024**2, "`POST`, `PATCH`": ["POST", "PATCH"]}


@pytest.mark.parametrize(
    ("heading", "known"),
    [("REDLOCK", {**RedlockSettings.DEFAULTS, **DEFAULTS}), ("IDEMPOTENCY", IDEMPOTENCY)],
)
def test_each_default_is_the_one_of_the_code(heading: str, known: dict[str, Any]) -> None:
    wrong = []
    for keys, cell, _ in SETTINGS_PAGE.section(heading).rows():
        names = re.findall(r"`(\w+)`", keys)
        cells = cell.split(", ") if len(names) > 1 else [cell]
        for name, shown in zip(names, cells * (len(names) // len(cells)), strict=True):
            if shown not in {"required", "Redis"} and _value(shown) != _comparable(known[name]):
                wrong.append((name, shown, known[name]))
    assert not wrong


def _value(cell: str) -> Any:
    return _comparable(WORDS[cell] if cell in WORDS else eval(cell.strip("`")))


def _comparable(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, tuple | list | frozenset) else value


@pytest.mark.parametrize("row", COMMANDS_PAGE.rows(), ids=lambda row: row[0])
def test_the_statuses_of_a_command_are_those_of_its_docstring(row: list[str]) -> None:
    name, statuses = row[0].strip("`"), {s for s, cell in zip("013", row[2:5], strict=True) if cell}
    summary = (type(load_command_class("redlock_django", name)).__doc__ or "").splitlines()[0]
    everywhere = {"2", "130"}
    if name in {"lead", "with_lock"}:  # that of their program
        assert statuses == ({"0", "1", "3"} if name == "with_lock" else {"0", "1"})
        assert [status for status in WITH_LOCK if f" {status} " not in COMMANDS_PAGE.text] == []
    else:
        assert {*re.findall(r"\b\d+\b", summary)} - everywhere == statuses


def test_every_error_of_a_lock_is_listed_with_its_answer() -> None:
    rows = {
        row[1].strip("`"): (row[2].split(" ")[0], row[3].strip("`")) for row in ERRORS_PAGE.rows()
    }
    bases = {"RedlockError", "NotAcquired", "IdempotencyRefused"}
    known = {
        name
        for name in exceptions.__all__
        if issubclass(getattr(exceptions, name), exceptions.RedlockError)
    }
    assert rows.pop("InvalidRedlock") == ("at", "")
    assert rows.keys() == known - bases
    for name, row in rows.items():
        error = getattr(exceptions, name)("x")
        answer = problem_of(error) if problem_type(error) else {"status": 500, "code": ""}
        assert row == (str(answer["status"]), answer["code"]), name
    [example] = ERRORS_PAGE.blocks("json")
    assert json.loads(example) == problem_of(exceptions.ResourceLocked("held"))


def test_every_refusal_of_a_key_is_listed_as_it_is_answered() -> None:
    yes = {"yes": True, "no": False}
    listed = {
        (int(status), code.strip("`"), yes[retryable], yes[new_key])
        for _, status, code, retryable, new_key in KEYS_PAGE.section("Refusals").rows()
    }
    problems = [problem_of(exceptions.IdempotencyRefused(refusal)) for refusal in REFUSALS]
    names = ("status", "code", "retryable", "safe_new_key")
    assert listed == {tuple(problem[name] for name in names) for problem in problems}


@pytest.mark.django_db
def test_the_permission_of_the_page_on_keys_exists() -> None:
    assert "`resolve_idempotencyrecord`" in KEYS_PAGE.section("Operating").text
    assert Permission.objects.filter(codename="resolve_idempotencyrecord").exists()


def test_each_cell_of_the_table_of_guarantees_names_a_test() -> None:
    guarantees = KEYS_PAGE.section("What is guaranteed when")
    cells = [cell for row in guarantees.rows() for cell in row[1:]]
    labels = [re.fullmatch(r"\[.+\]\[(\w+)\]", cell) for cell in cells]
    assert len(cells) == 3 * 6
    assert all(labels)
    tests = {*re.findall(r"^\[(\w+)\]: ", guarantees.text, re.MULTILINE)}
    assert {label[1] for label in labels if label} == tests  # which exist, as tested above


def test_the_api_is_that_of_the_signatures_and_docstrings() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), (
        "write the page again: uv run python -m tests.api_page > docs/reference/api.md"
    )


def test_the_api_has_every_public_name() -> None:
    shown = {name.replace(".exceptions.", ".") for _, name, _ in api_page.public_objects()}
    assert {f"redlock_django.{name}" for name in redlock_django.__all__} <= shown


# The glossary: the words of users, then those of the code.

USERS, CODERS = Page("docs/explanation/glossary.md").text.split("\n## Words of the code\n")
PLAIN = {"REDLOCK", "anonymous_scope", "holder", "redlock_django", "using", "wait"}


def test_every_symbol_of_the_glossary_exists() -> None:
    known = PLAIN | {*DEFAULTS, *RedlockSettings.DEFAULTS}
    for path in (ROOT / "redlock_django").rglob("*.*"):
        found = symbols_of(path) if path.suffix == ".py" else {path.name}
        known |= found | {f"{path.stem}.{name}" for name in found}
    named = re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)?)`", USERS + CODERS)
    assert sorted({*named} - known) == []


def test_terms_are_in_alphabetical_order_and_in_one_part_only() -> None:
    users, coders = (
        [term.lower() for term in re.findall(r"^\*\*([^*,.]+)", page, re.MULTILINE)]
        for page in (USERS, CODERS)
    )
    assert len(users + coders) > 60
    assert (users, coders) == (sorted(users), sorted(coders))
    assert not {*users} & {*coders}
    words = re.findall(r"^\| ([^|]+) \| ", CODERS.partition("## Not this")[2], re.MULTILINE)
    assert len(words) == len({*words}) > 3


# The page on what is sent to masters.

WIRE = (ROOT / "docs/contributing/on-the-wire.md").read_text()
LUA = ROOT / "redlock_django/engine/protocol/lua"


def test_every_status_has_its_number() -> None:
    rows = re.findall(r"^\| (−?\d) \| `(\w+)` \|", WIRE, re.MULTILINE)
    said = {name: int(number.replace("−", "-")) for number, name in rows}
    said |= {name: int(number) for number, name in re.findall(r"(\d) \(`(\w+)`", WIRE)}
    assert said == Status.__members__


def test_every_script_is_described_and_no_other() -> None:
    files = {path.stem: path.read_text() for path in LUA.glob("*.lua")}
    included = {part for text in files.values() for part in commands.INCLUDE.findall(text)}
    scripts = files.keys() - included - {"join", "failover"}
    tables = WIRE[WIRE.index("## Commands on locks") : WIRE.index("## Statuses")]
    tables += WIRE[WIRE.index("## Inspection") :]
    assert scripts == set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE))
    assert "`join`" in WIRE
    assert "`failover.lua`" in WIRE


def test_the_first_lines_of_each_script_list_its_keys_its_arguments_and_its_reply() -> None:
    names = [command.name for command in commands.COMMANDS]
    for name in [*names, "join", "held", "look", "health"]:
        comment = re.match(r"(?:--.*\n)+", (LUA / f"{name}.lua").read_text())
        assert comment
        for part in ("-- KEYS: ", "-- ARGV: round", "-- -> "):
            assert part in comment[0], (name, part)


def test_every_key_is_described() -> None:
    deployment = Deployment(names=("a",), prefix="P")
    names = {
        deployment.lock("R"), deployment.fence("R"), deployment.queue("R"), deployment.held,
        deployment.marker, deployment.tomb("TOKEN"), deployment.wake("PROCESS"),
    }  # fmt: skip
    assert names == set(re.findall(r"^\| `(P:[\w:]+)` \|", WIRE, re.MULTILINE))


# The page on stability, and the list of public names.

STABILITY = (ROOT / "docs/reference/stability.md").read_text()
IMPORTS = re.compile(r"^from (redlock_django[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def test_the_public_names_are_those_of_the_package() -> None:
    """A line that goes or changes breaks a user: stability.md says when that may be."""
    listed, found = _public(), public_names()
    gone, new = sorted({*listed} - {*found}), sorted({*found} - {*listed})
    assert (gone, new) == ([], []), (
        "if the change is meant, say it in CHANGELOG.md and write the list again: "
        "uv run python -m tests.public_names > docs/reference/public-names.txt"
    )
    assert listed == found


def test_what_a_page_tells_users_to_import_is_public() -> None:
    objects = {re.split(r"[ (:]", line)[1] for line in _public()}
    public = {f"redlock_django.{name}" for name in redlock_django.__all__} | objects
    public |= {f"redlock_django.signals.{name}" for name in objects}
    named = {
        f"{module}.{name.strip()}"
        for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md")
        for module, names in IMPORTS.findall(page.read_text())
        for name in names.split(",")
    }
    assert len(named) > 20
    assert named - public == set()


def test_the_package_has_each_exception_that_a_page_names() -> None:
    ours = {name for name, one in vars(exceptions).items() if _is_ours(one)}
    pages = "".join(page.read_text() for page in ROOT.glob("docs/**/*.md") if page.name != "api.md")
    named = {name for name in re.findall(r"\b[A-Z]\w+\b", pages) if name in ours}
    assert {"StoreUnavailable", "BadName", "LockLost"} <= named
    assert named <= set(redlock_django.__all__)


def _is_ours(value: object) -> bool:
    return isinstance(value, type) and value.__module__.startswith("redlock_django")


def test_the_supported_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = dict(re.findall(r"^\| ([\w, ]+) \| ([^|]+) \|", STABILITY, re.MULTILINE))
    assert tuple(re.findall(r"[\d.]+", rows["Python"])) == PYTHONS
    djangos = [
        one.rpartition(" ")[2]
        for one in project["classifiers"]
        if re.fullmatch(r"Framework :: Django :: \d\.\d", one)
    ]
    assert re.findall(r"[\d.]+", rows["Django"]) == djangos
    bounds = {**dict(re.findall(r"([a-z]\w+)>=([\d.]+)", str(project["optional-dependencies"])))}
    assert f"psycopg {bounds['psycopg']}" in rows["PostgreSQL"]
    assert f"kazoo {bounds['kazoo']}" in rows["ZooKeeper"]


def test_the_page_has_a_row_for_each_kind_of_public_name() -> None:
    rows = {
        "names to import": {"attribute", "backend", "class", "function", "method", "object"},
        "settings": {"setting"}, "commands": {"command", "JSON"}, "signals": {"signal"},
        "metrics": {"metric"}, "problem types": {"problem"}, "permissions": {"permission"},
        "identifiers of system checks": {"check"}, "tables": {"column"},
    }  # fmt: skip
    assert [start for start in rows if f"\n| {start}" not in STABILITY] == []
    kinds = {line.split(" ", 1)[0] for line in _public()}
    assert kinds == {kind for every in rows.values() for kind in every}


def test_each_identifier_of_a_check_is_that_of_one_subject() -> None:
    """A site that silences one must not silence another."""
    files: dict[str, set[str]] = {}
    for path in (ROOT / "redlock_django/checks").glob("*.py"):
        for number in re.findall(r"\"(?:redlock_django\.)?([EW]0\d\d)\"", path.read_text()):
            files.setdefault(number, set()).add(path.stem)
    assert len(files) > 20
    assert {number for number, where in files.items() if len(where) > 1} == {"E001"}
