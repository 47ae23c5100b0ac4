"""Change the code of one function for a while, to see which test fails.

A mutation says what it changes by symbol, `without(Dialer._dial)`, or by a piece of code,
`never("now >= lease.until")`. Code is compared as syntax trees: layout, line breaks, comments,
docstrings and needless brackets make no difference. In a piece of code

- `...` matches any expression; at the end of arguments or of a list, it matches all the rest;
- a name that does not occur in the function has been renamed: it matches any other name, the
  same one wherever it occurs, and is renamed likewise in the code that is put in.

A target that is not found, or found more than once without `nth`, raises LookupError, which
shows the closest code of the function.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from difflib import SequenceMatcher
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.engine.lua_mutation import Lua, script_mutated

Function = ast.FunctionDef | ast.AsyncFunctionDef
Mutation = Callable[[Function], None]
Change = tuple[Any, Mutation | Lua]
Target = str | Callable[..., object]  # a piece of code, or a function: a call of it

IDENTIFIERS = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg"}
LAYOUT = {"ctx", "kind", "type_comment"}  # what two equal pieces of code may differ in


# What can be changed.


def instead(target: Target, code: str, *, nth: int = 0) -> Mutation:
    """Replace a target by `code`: an expression by an expression, a statement by statements.

    `nth` chooses one of several equal targets, in the order of the source, from 1 on.
    """

    def mutate(function: Function) -> None:
        new = ast.parse(code).body
        value = new[0].value if isinstance(new[0], ast.Expr) else None
        found = _find(function, target, nth=nth, statement=value is None)
        found.put([_renamed(node, found.renamed) for node in ([value] if value else new)])

    return mutate


def without(target: Target, *, nth: int = 0) -> Mutation:
    """Remove a statement."""
    return instead(target, "pass", nth=nth)


def never(condition: Target, *, nth: int = 0) -> Mutation:
    """Make a condition false: its branch is dead, or an operand of `or` has no effect."""
    return instead(condition, "False", nth=nth)


def always(condition: Target, *, nth: int = 0) -> Mutation:
    """Make a condition true: its branch is always taken, or an operand of `and` has no effect."""
    return instead(condition, "True", nth=nth)


def returns(code: str) -> Mutation:
    """Replace what the function's only `return` returns."""
    return instead("return ...", f"return {code}")


def argument(function: Callable[..., object], **codes: str) -> Mutation:
    """Replace one argument of a call of `function`; the argument has its parameter's name."""
    ((parameter, code),) = codes.items()

    def mutate(tree: Function) -> None:
        parameters = list(inspect.signature(function).parameters)
        if parameter not in parameters:
            raise LookupError(f"{function.__name__} has no {parameter!r}, but {parameters}")
        index = parameters.index(parameter)
        new = ast.parse(code, mode="eval").body
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _calls(function, call):
                for keyword in call.keywords:
                    if keyword.arg == parameter:
                        keyword.value = new
                        return
                if index < len(call.args):
                    call.args[index] = new
                    return
        raise _not_found(tree, f"{function.__name__}({parameter}=...)", ast.expr)

    return mutate


def at_start(code: str) -> Mutation:
    """Run `code` before the function's first statement."""
    return lambda function: function.body.__setitem__(slice(0, 0), ast.parse(code).body)


def together(*mutations: Mutation) -> Mutation:
    """Apply several mutations to one function."""

    def mutate(function: Function) -> None:
        for mutation in mutations:
            mutation(function)

    return mutate


# Putting a mutation into effect.


@contextmanager
def mutated(function: Any, mutation: Mutation | Lua, name: str) -> Iterator[None]:
    """Replace the code of a function or property, also for those that have imported it.

    `name` is the file name of the mutated code in tracebacks. The source file is not touched. If
    `function` is the name of a Lua script, its mutation is one of `lua_mutation`.
    """
    if isinstance(mutation, Lua):
        with script_mutated(function, mutation):
            yield
        return
    plain = plain_function(function)
    code = plain.__code__
    plain.__code__ = _compiled(plain, mutation, name)
    try:
        yield
    finally:
        plain.__code__ = code


@contextmanager
def changed(*changes: Change) -> Iterator[None]:
    """Apply changes to several functions."""
    with ExitStack() as stack:
        for function, mutation in changes:
            stack.enter_context(mutated(function, mutation, "changed"))
        yield


def mutated_source(function: Any, mutation: Mutation) -> str:
    """Return the source of a function after a mutation."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(plain_function(function)))).body[0]
    assert isinstance(tree, Function)
    if ast.get_docstring(tree):
        del tree.body[0]
    mutation(tree)
    return ast.unparse(tree)


def plain_function(function: Any) -> FunctionType:
    """Return the function that a property, decorator or wrapper is about."""
    plain = function.fget if isinstance(function, property) else inspect.unwrap(function)
    assert isinstance(plain, FunctionType)
    return plain


def _compiled(function: FunctionType, mutation: Mutation, name: str) -> CodeType:
    source = mutated_source(function, mutation)
    for free in function.__code__.co_freevars:
        # Only a function within another one has a free name, such as super()'s.
        source = f"def around({free}):\n{textwrap.indent(source, '    ')}\n"
        source += f"    return {function.__name__}\n{function.__name__} = around(None)\n"
    scope = dict(function.__globals__)
    head = "from __future__ import annotations\n"
    exec(compile(head + source, f"<{name}>", "exec"), scope)
    return plain_function(scope[function.__name__]).__code__


# Finding the target.


class Found(NamedTuple):
    """A node that matches a target: where it is, and which names have been renamed."""

    node: ast.expr | ast.stmt
    parent: ast.AST
    field: str
    renamed: dict[str, str]

    def put(self, new: list[Any]) -> None:
        """Replace the node."""
        siblings = getattr(self.parent, self.field)
        if isinstance(siblings, list):
            index = siblings.index(self.node)
            siblings[index : index + 1] = new
        else:
            (node,) = new
            setattr(self.parent, self.field, node)


def _find(function: Function, target: Target, *, nth: int, statement: bool) -> Found:
    code = target if isinstance(target, str) else f"{target.__name__}(...)"
    pattern: ast.AST = ast.parse(code).body[0]
    if isinstance(pattern, ast.Expr) and not statement:
        pattern = pattern.value
    known = {name for node in ast.walk(function) if (name := _identifier(node)) is not None}
    found = []
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            for node in value if isinstance(value, list) else [value]:
                renamed: dict[str, str] = {}
                if not isinstance(node, ast.expr | ast.stmt) or _is_assigned(node):
                    continue
                if isinstance(target, str):
                    matches = _matches(pattern, node, known, renamed)
                else:
                    call = node.value if statement and isinstance(node, ast.Expr) else node
                    matches = statement is not isinstance(node, ast.expr) and _calls(target, call)
                if matches:
                    found.append(Found(node, parent, field, renamed))
    if not found:
        raise _not_found(function, code, ast.stmt if isinstance(pattern, ast.stmt) else ast.expr)
    if len(found) > 1 and not nth:
        raise LookupError(f"{function.name} has {len(found)} times {code!r}: choose one by nth")
    found.sort(key=lambda one: (one.node.lineno, one.node.col_offset))
    return found[max(nth - 1, 0)]


def _calls(function: Callable[..., object], node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _identifier(node.func) == function.__name__


def _matches(wanted: Any, node: Any, known: set[str], renamed: dict[str, str]) -> bool:
    if _is_anything(wanted):
        return isinstance(node, ast.expr)
    if isinstance(wanted, list):
        if wanted and _is_anything(wanted[-1]):
            wanted, node = wanted[:-1], node[: len(wanted) - 1]
        return len(wanted) == len(node) and all(
            _matches(*pair, known, renamed) for pair in zip(wanted, node, strict=True)
        )
    if not isinstance(wanted, ast.AST):
        return bool(wanted == node)
    if type(wanted) is not type(node):
        return False
    skip = set(LAYOUT)
    if isinstance(wanted, ast.Call) and wanted.args and _is_anything(wanted.args[-1]):
        assert isinstance(node, ast.Call)
        skip.add("keywords")  # those that are named must be there; others may be
        for keyword in wanted.keywords:
            if not any(_matches(keyword, other, known, renamed) for other in node.keywords):
                return False
    if type(wanted) in IDENTIFIERS:
        skip.add(IDENTIFIERS[type(wanted)])
        name, other = _identifier(wanted), _identifier(node)
        if name != other and (
            name is None or name in known or renamed.setdefault(name, str(other)) != other
        ):
            return False
    return all(
        _matches(value, getattr(node, field), known, renamed)
        for field, value in ast.iter_fields(wanted)
        if field not in skip
    )


def _is_anything(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_assigned(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _identifier(node: ast.AST) -> str | None:
    return getattr(node, IDENTIFIERS[type(node)]) if type(node) in IDENTIFIERS else None


def _renamed(code: ast.AST, renamed: dict[str, str]) -> ast.AST:
    for node in ast.walk(code):
        name = _identifier(node)
        if name in renamed:
            setattr(node, IDENTIFIERS[type(node)], renamed[name])
    return code


def _not_found(function: Function, target: str, kind: type[ast.AST]) -> LookupError:
    texts = {ast.unparse(node) for node in ast.walk(function) if isinstance(node, kind)}
    closest = sorted(texts, key=lambda text: -SequenceMatcher(None, target, text).ratio())[:3]
    lines = "".join(f"\n    {text.splitlines()[0]}" for text in closest)
    return LookupError(f"{function.name} has no {target!r}; the closest code in it is:{lines}")
