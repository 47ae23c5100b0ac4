"""No exception raised by a signal skips the `finally` of a `with` or `try` in the package.

A condition at the end of a loop compiles to two jumps. Python 3.12 and 3.13 leave the second one
outside of the exception handlers around it. Python 3.13 handles signals before such a jump; older
ones handle them after it, and search for the handler of the instruction before its target.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

PACKAGE = Path(__file__).resolve().parents[2] / "redlock_django"
# These hold neither a lock nor a mutex, so an interrupt leaves nothing in a bad state.
HARMLESS = ("admin", "checks", "management", "testing")
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in HARMLESS
)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def unguarded_jumps(code: CodeType) -> Iterator[int | None]:
    """Yield the lines of the backward jumps where a signal skips the handler around the target."""
    if not code.co_exceptiontable:  # as most functions, which need not be disassembled
        return
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    instructions = {each.offset: each for each in dis.get_instructions(code)}

    def guarded(offset: int) -> bool:
        for entry in entries:
            if entry.start <= offset < entry.end:
                # Handlers of comprehensions and generators only clean up: look further out.
                ours = instructions[entry.target].opname == "PUSH_EXC_INFO"
                return ours or guarded(entry.target)
        return False

    for offset, each in instructions.items():
        if each.opname == "JUMP_BACKWARD" and guarded(each.argval):
            handled_at = offset if sys.version_info >= (3, 13) else each.argval - 2
            if not guarded(handled_at):
                yield each.positions.lineno if each.positions else None


def test_every_harmless_path_exists() -> None:
    assert [name for name in HARMLESS if not (PACKAGE / name).exists()] == []


def test_no_loop_jumps_past_its_handlers() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {code.co_qualname}"
        for path in FILES
        for code in nested_codes(compile(path.read_text(), str(path), "exec"))
        # A task is cancelled only where it awaits.
        if not code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
        for line in unguarded_jumps(code)
    ]
    assert found == []
