"""No exception that a signal raises leaves a `with` or `try` of ours without its end.

A condition at the end of a loop becomes two jumps of bytecode. Python 3.12 and 3.13 forget to
put the second under the handlers around it, and look for signals just there.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "redlock_django"
# Where nothing is left in a bad state: they hold no lock and no mutex meanwhile.
HARMLESS = ("admin", "management", "testing", "freeing.py", "inspection.py")
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in HARMLESS
)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def ways(code: CodeType) -> Iterator[int]:
    """The offsets of jumps back up that are not under the handler that their target is under."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    instructions = {each.offset: each for each in dis.get_instructions(code)}

    def guarded(offset: int) -> bool:
        for entry in entries:
            if entry.start <= offset < entry.end:
                # Not so for the handlers of comprehensions and generators, which only tidy up.
                ours = instructions[entry.target].opname == "PUSH_EXC_INFO"
                return ours or guarded(entry.target)
        return False

    for offset, each in instructions.items():
        if each.opname == "JUMP_BACKWARD" and guarded(each.argval) and not guarded(offset):
            yield offset


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_loop_has_one(path: Path) -> None:
    for code in codes(compile(path.read_text(), str(path), "exec")):
        # What a loop runs is cancelled where it awaits, and nowhere else.
        if not code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            assert list(ways(code)) == [], code.co_qualname
