"""The architecture holds: imports run downward, classes are whole, files are short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.pages import ROOT

PACKAGE = ROOT / "redlock_django"

# Lowest first, one layer a line. A module may import from its own layer and from those below it.
# "x.*" is the whole package x; packages with many modules have a layer for each step inside.
LAYERS = [
    line.split()
    for line in """
    engine engine.errors engine.run_protocol
    engine.protocol.*
    engine.quorum
    engine.membership engine.fencing engine.validity engine.refusal engine.slot_choice
    engine.steps engine.pauses engine.renewal
    engine.undo
    engine.attempt
    engine.rounds
    engine.inspection.*
    wire wire.clock wire.notice wire.wakeup wire.servers.*
    wire.links wire.links.resp
    wire.links.link
    wire.links.master wire.links.waiters
    wire.links.late_masters wire.links.clock_steps
    wire.links.sender
    wire.links.link_changes
    wire.links.replies
    wire.links.links
    wire.drivers.*
    exceptions
    backends backends.values backends.inspection.*
    backends.base
    backends.protocol_backend
    backends.redis.*
    backends.memory.* backends.database.* backends.zookeeper.*
    conf.*
    signals locking locking.names locking.thread_state
    locking.signal_thread
    locking.event_loops
    locking.reports
    locking.services
    locking.arguments
    locking.lease
    locking.caller locking.renewal
    locking.nesting locking.transactions
    locking.handing locking.transaction_lock
    locking.lock
    locking.leader locking.resume_lock locking.unused_locks
    fenced operate.* models migrations.*
    web web.answers web.view_kinds web.request
    web.name_templates web.misplaced_locks
    web.options web.hold
    web.locked_view
    web.lock_resource
    web.mixins web.rules
    idempotency idempotency.refusals
    idempotency.fingerprint idempotency.protocol
    idempotency.settings idempotency.response
    idempotency.key
    idempotency.records
    idempotency.placement
    idempotency.recorder
    idempotency.keyed_request
    idempotency.once idempotency.resolve
    idempotency.decorators
    middleware
    admin.* checks.* contrib.* management.* testing.*
    apps
    """.strip().splitlines()
]
ENTRY_POINTS = {"admin", "checks", "contrib", "management", "testing"}
# The module that only re-exports public names. For type checkers it imports from layers above its
# own; at runtime it imports a name when it is first used.
REEXPORTING = {"redlock_django", "redlock_django.backends.database"}
PURE = {
    "asyncio", "datetime", "django", "logging", "os", "queue", "random", "redis", "secrets",
    "select", "socket", "ssl", "subprocess", "sys", "threading", "time",
}  # fmt: skip
VAGUE = {"helper", "helpers", "util", "utils", "common", "manager", "misc", "core"}


@cache
def modules() -> dict[str, Path]:
    """Return the path of every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, for_types: bool = False, inside_functions: bool = True) -> set[str]:
    """Return every module that a file imports, by default also inside functions.

    Imports for type checkers only count with `for_types`.
    """
    tree = _tree(path)
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(ast.walk(node))
    names: set[str] = set()
    for node in ast.walk(tree) if inside_functions else tree.body:
        if node in typing_only and not for_types:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            known = modules()
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
    return names


def layer(module: str) -> int:
    """Return the height of a module's layer."""
    name = module.removeprefix("redlock_django.")
    packages = {".".join(name.split(".")[: n + 1]) + ".*" for n in range(name.count(".") + 1)}
    for height, entries in enumerate(LAYERS):
        if name in entries or packages & {*entries}:
            return height
    raise AssertionError(f"{module} is in no layer: add it to LAYERS")


OURS = [name for name in modules() if name != "redlock_django"]
BELOW_DJANGO = ("redlock_django.engine", "redlock_django.wire")


@cache
def imported() -> dict[str, set[str]]:
    """Return the imports of each module at runtime."""
    return {name: imports(modules()[name]) for name in OURS}


@cache
def imported_for_types() -> dict[str, set[str]]:
    """Return the imports of each module, with those for type checkers only."""
    return {
        name: imports(modules()[name], for_types=name not in REEXPORTING) - {name} for name in OURS
    }


@pytest.mark.slow
def test_imports_run_downward_only() -> None:
    assert not [
        f"{module} imports {other}"
        for module, others in imported_for_types().items()
        for other in others
        if other.startswith("redlock_django.") and layer(other) > layer(module)
    ]


def test_there_are_no_import_cycles() -> None:
    graph = {
        module: {other for other in others if other in OURS}
        for module, others in imported_for_types().items()
    }
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", sorted(ENTRY_POINTS))
def test_entry_points_do_not_import_each_other(package: str) -> None:
    others = tuple(f"redlock_django.{other}" for other in ENTRY_POINTS - {package})
    for module in OURS:
        # redlock_masters starts the servers of `testing` from a shell, and does nothing else.
        if module.split(".")[1] == package and not module.endswith(".redlock_masters"):
            assert not {name for name in imported()[module] if name.startswith(others)}, module


def test_the_root_keeps_what_users_import_and_django_requires() -> None:
    files = {path.name for path in PACKAGE.glob("*.py")}
    assert files == {
        "__init__.py", "apps.py", "exceptions.py", "fenced.py", "middleware.py", "models.py",
        "signals.py",
    }  # fmt: skip


@pytest.mark.slow
def test_a_site_that_only_locks_does_not_import_idempotency() -> None:
    script = (ROOT / "tests" / "app" / "site_with_locks_only.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    imported_by_locks, field = done.stdout.split("\n")
    assert imported_by_locks == "{200} []", done.stderr
    assert field.startswith('<input type="hidden" name="idempotency_key" value="')


def test_the_engine_is_pure() -> None:
    for module in [name for name in OURS if ".engine" in name]:
        roots = {name.split(".")[0] for name in imported()[module]}
        assert not roots & PURE, module
        if module.endswith(".errors"):
            assert "redlock_django" not in roots, module
        if module.endswith(".quorum"):
            ours = {name for name in imported()[module] if name.startswith("redlock_django")}
            assert ours == {"redlock_django.engine.protocol.votes"}


DONE_BY_DRIVERS = {
    "asyncio", "queue", "redis", "select", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip


def test_the_links_have_no_socket_clock_or_thread() -> None:
    """Nor has any module that they need; redis-py is only imported where it connects."""
    needed = {name for name in OURS if ".wire.links" in name}
    while more := {name for n in needed for name in imported()[n] if name in OURS} - needed:
        needed |= more
    for module in needed:
        names = imports(modules()[module], inside_functions=False)
        assert not {name.split(".")[0] for name in names} & DONE_BY_DRIVERS, module
        assert "redlock_django.wire.clock" not in names, module


def test_the_wire_and_the_engine_do_not_import_django() -> None:
    for module, names in imported().items():
        if module.startswith(BELOW_DJANGO):
            assert not {name for name in names if name.split(".")[0] == "django"}, module


# What gevent replaces in modules of the standard library.
REPLACED = {
    "queue": {"LifoQueue", "PriorityQueue", "Queue", "SimpleQueue"},
    "select": {"epoll", "poll", "select"},
    "selectors": {"DefaultSelector", "EpollSelector"},
    "socket": {"create_connection", "getaddrinfo", "socket", "socketpair"},
    "ssl": {"SSLContext", "SSLSocket"},
    "threading": {"Condition", "Event", "Lock", "Thread", "Timer", "local"},
    "time": {"sleep"},
}


def evaluated_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that Python evaluates when it imports a module: not bodies of functions."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return  # which keeps nothing
    yield node
    for field, value in ast.iter_fields(node):
        is_body = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if (is_body and field == "body") or field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from evaluated_at_import(child)


def test_no_module_keeps_a_primitive_that_gevent_replaces_after_the_import() -> None:
    """Each module looks it up when it needs it: `queue.SimpleQueue()`."""
    kept = []
    for module in OURS:
        tree = _tree(modules()[module])
        kept += [
            f"{module}: from {node.module} import {alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in REPLACED.get(node.module or "", ())
        ]
        kept += [
            f"{module}, line {node.lineno}: {ast.unparse(node)}"
            for node in evaluated_at_import(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in REPLACED.get(node.value.id, ())
        ]
    assert not kept


def folder(module: str) -> str:
    """Return the folder of a module, as a dotted name."""
    path = modules()[module]
    parts = path.relative_to(ROOT).parent.parts
    return ".".join(parts)


def test_folders_of_the_layers_below_django_import_each_other_in_one_direction() -> None:
    roots = tuple(f"redlock_django.{package}." for package in ("engine", "wire", "backends"))
    graph: dict[str, set[str]] = {}
    for module, others in imported_for_types().items():
        if module.startswith(roots):
            found = graph.setdefault(folder(module), set())
            found |= {folder(other) for other in others if other in OURS} - {folder(module)}
    TopologicalSorter(graph).prepare()


STORES = ("redis", "memory", "database", "zookeeper")


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_no_store_imports_another(store: str) -> None:
    """But for the memory store: it is the Redis store, over masters in its own process."""
    allowed = ("memory", "redis") if store == "memory" else (store,)
    others = tuple(f"redlock_django.backends.{other}" for other in STORES if other not in allowed)
    for module in OURS:
        if module.startswith(f"redlock_django.backends.{store}"):
            assert not {name for name in imported()[module] if name.startswith(others)}, module


def test_the_drivers_for_threads_and_loops_do_not_import_each_other() -> None:
    drivers = "redlock_django.wire.drivers"
    assert f"{drivers}.loop" not in imported()[f"{drivers}.threads"]
    assert f"{drivers}.threads" not in imported()[f"{drivers}.loop"]


def test_only_the_drivers_and_the_wakeup_know_event_loops() -> None:
    for module, names in imported().items():
        if module.startswith("redlock_django.wire.") and ".drivers" not in module:
            assert "asyncio" not in names or module.endswith(".wakeup"), module


Class = tuple[str, str]  # the module and the name of a class of ours


@cache
def defined() -> dict[Class, ast.ClassDef]:
    """Return every class of the package, with its code."""
    return {
        (module, node.name): node
        for module, path in modules().items()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef)
    }


@cache
def imported_names(module: str) -> dict[str, tuple[str, str]]:
    """Return what the names that a module imports mean: a module, and a name in it."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_tree(modules()[module]))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def class_of(module: str, name: str) -> Class | None:
    """Return the class of ours that a module names so, also if it is imported from another."""
    if (module, name) in defined():
        return module, name
    if module not in modules():
        return None
    first, _, rest = name.partition(".")
    origin, original = imported_names(module).get(first, ("", ""))
    return class_of(f"{origin}.{original}", rest) if rest else class_of(origin, original)


@cache
def bases() -> dict[Class, list[Class]]:
    """Return the bases of each class of the package that are classes of the package."""
    found = {}
    for (module, name), node in defined().items():
        written = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        parents = [class_of(module, ast.unparse(base)) for base in written]
        found[module, name] = [parent for parent in parents if parent]
    return found


# The classes that a class in another module may inherit from: what a caller or Django is promised,
# with several implementations. A class is given its other parts when it is made.
CONTRACTS = {
    "backends.base.BaseBackend": "a store",
    "backends.base.StoreSettings": "the settings of a store",
    "backends.protocol_backend.ProtocolBackend": "a store that is asked step by step",
    "backends.protocol_backend.StepRunner": "what performs the steps of such a store",
    "backends.protocol_backend.StoreStep": "a step of such a store",
    "backends.redis.backend.RedlockBackend": "a store on masters: Redis, memory",
    "backends.redis.settings.RedlockSettings": "the settings of a store on masters",
    "backends.inspection.contract.Inspection": "what operators ask a store",
    "engine.validity.Lease": "a lease, which each store extends by what it must know",
    "engine.steps.Round": "what a driver carries out",
    "engine.protocol.query.Query": "a question to one master",
    "wire.servers.survey.Survey": "questions to all masters: over connections, in memory",
    "wire.servers.trust.Unfit": "an error: why a master is not used",
    "locking.lock.Lock": "a lock: of a request under `@idempotent`, of a leader, of a ticket",
    "management.operator_command.OperatorCommand": "a command of Django",
    "admin.read_only.ReadOnlyMixin": "a page of Django's admin on which nothing is changed",
    "engine.errors.RedlockError": "an error that users catch",
    "engine.errors.BadResource": "an error that users catch",
    "exceptions.InvalidRedlock": "an error that users catch",
}


def test_a_class_is_not_continued_in_another_file() -> None:
    used = {
        f"{module}.{name}".removeprefix("redlock_django."): inherits
        for inherits, parents in bases().items()
        for module, name in parents
        if module != inherits[0]
    }
    assert {base: by for base, by in used.items() if base not in CONTRACTS} == {}
    assert {*CONTRACTS} <= {*used}, "remove what is no base any more"


def test_classes_inherit_in_at_most_two_steps() -> None:
    """Errors may have more: users catch them by any of their bases."""

    def steps(of: Class) -> int:
        return max((1 + steps(parent) for parent in bases()[of]), default=0)

    deep = {name: steps((module, name)) for module, name in bases() if steps((module, name)) > 2}
    assert deep == {"QuorumUnreachable": 3, "LimitReached": 3}


# Names that Django finds a class by.
DJANGO = {"Command", "Media", "Meta", "Migration"}


def test_no_class_name_is_defined_twice() -> None:
    where: dict[str, set[str]] = {}
    for module, tree in ((module, _tree(path)) for module, path in modules().items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in DJANGO:
                where.setdefault(node.name, set()).add(module)
        # Names of types, such as Step = Round | Pause. Type variables have no meaning of their own.
        for node in tree.body:
            if isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("TypeVar("):
                for target in node.targets:
                    if isinstance(target, ast.Name) and re.match("[A-Z]+[a-z]", target.id):
                        where.setdefault(target.id, set()).add(module)
    assert not {name: found for name, found in where.items() if len(found) > 1}


def test_only_the_tally_compares_counts_of_votes() -> None:
    comparing = re.compile(r"\.need\s*(?:[<>]|==)|[<>]=?\s*\w+\.need|//\s*2")
    for path in (PACKAGE / "engine").rglob("*.py"):
        if path.name != "quorum.py":
            assert not comparing.search(path.read_text()), path.name


def test_files_are_named_for_what_a_reader_looks_for_and_stay_short() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert path.stem not in VAGUE, path
        lines = len(path.read_text().splitlines())
        # A class is not continued in another file. `Lock` has a method for each use, twice,
        # `HeldLease` everything that may happen to a lease while it is held, and `commands` all
        # that is sent to a master.
        most = 500 if path.name in ("lock.py", "lease.py", "commands.py") else 400
        assert lines <= most, f"{path.relative_to(PACKAGE)} has {lines} lines"


def test_public_names_are_there_and_documented() -> None:
    import redlock_django

    for name in redlock_django.__all__:
        assert getattr(redlock_django, name).__doc__ or name == "locks"
    assert callable(redlock_django.lock)


@pytest.mark.attack
def test_lua_builds_no_key_and_prints_no_number_by_itself() -> None:
    for path in (PACKAGE / "engine" / "protocol" / "lua").glob("*.lua"):
        code = "\n".join(line.split("--")[0] for line in path.read_text().splitlines())
        assert "tostring" not in code, path.name
        assert "cjson" not in code, path.name
        for call in re.findall(r"redis\.p?call\(((?!'PUBLISH'|'INFO')[^\n]*)", code):
            key = call.split(",")[1].strip() if "," in call else ""
            known = re.match(r"KEYS\[|(key|queue)\b|unpack\(KEYS|'TIME'", key)
            assert not key or known, (path.name, call)


# The page about it shows which files exclusion rests on: every package and script that votes is
# among them.

PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
RESTS, ELSEWHERE = PAGE.partition("## What exclusion rests on")[2].split("\nA defect elsewhere")
FILES = dict.fromkeys(re.findall(r"`((?:engine|wire|locking|backends)/[\w/]+\.(?:py|lua))`", RESTS))


def test_every_layer_is_in_the_diagram() -> None:
    diagram = PAGE[PAGE.index("```mermaid") :]
    packages = {entry.split(".")[0] for entries in LAYERS for entry in entries}
    named = {name for name in packages if (ROOT / "redlock_django" / name / "__init__.py").exists()}
    assert not {name for name in named - {"migrations"} if name not in diagram}


def lines(*names: str) -> int:
    return sum(len((PACKAGE / name).read_text().splitlines()) for name in names)


def test_exclusion_rests_on_a_package_or_cannot_be_broken_by_it() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    harmless = set(re.findall(r"`(\w+)`", ELSEWHERE))
    assert packages - harmless == {name.partition("/")[0] for name in FILES}
    assert not {name.partition("/")[0] for name in FILES} & harmless


def test_exclusion_rests_on_every_script_that_votes() -> None:
    scripts = {path.name for path in (PACKAGE / "engine/protocol/lua").glob("*.lua")}
    asked = {"health.lua", "held.lua", "look.lua"}  # inspection
    assert {name.rpartition("/")[2] for name in FILES if name.endswith(".lua")} == scripts - asked


def test_the_page_says_on_how_much_exclusion_rests() -> None:
    said = re.search(r"about ([\d,]+) of ([\d,]+)\s+lines for Redis masters", RESTS)
    assert said
    core = lines(*(name for name in FILES if not name.startswith("backends/")))
    every = lines(*(str(path) for path in PACKAGE.rglob("*") if path.suffix in {".py", ".lua"}))
    for shown, counted in zip(said.groups(), (core, every), strict=True):
        assert abs(int(shown.replace(",", "")) - counted) < 0.1 * counted, (shown, counted)
