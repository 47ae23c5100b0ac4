"""The words of docs/explanation/glossary.md: phrases that a reader would stumble over stay out.

The list is short and exact, so that it raises no false alarm. What it cannot see is for review.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "redlock_django"

PHRASES = {
    # what not to write: what to write instead
    r"(somebody|anybody|one|those|all) who waits?|(?<!party )who waits?": "a waiter, waiters",
    r"somebody else (holds|held|has)|held by somebody": "another client holds it",
    r"(is|are|was|were) told": "is reported",
    r"mended": "fixed",
    r"anew": "again",
    r"a text (that|of|with|is|in)|is (a|no) text": "a string",
    r"(is|are|was) no (list|dict|string|text|lock|key|URL|number|duration|redis)": "is not a ...",
    r"luck": "randomness",
    r"(in )?(both|two|either|each|whichever) colours?|each colour": "for sync and async",
    r"storeys?": "layer",
    r"(say|said|says) to (a|the|each|every) masters?": "send to a master",
    r"on call": "operator",
    r"let one": "allow, make ... do",
    r"(is|was) not had": "was not acquired",
    r"(gives?|given|gave|giving) (it |a lock |the lock |a lease |them )?back": "release, return",
    r"same stories": "identical traces",
    r"(take|takes|taken|took) out a rule|rules? (is |are )?taken out": "remove a rule",
    r"good for nothing": "it has no effect",
}
PHRASE = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)
OPENING = re.compile(r"(Give|Have|Let|Put|Says?|Tell|Those|Whether|Who|What) ")

PRODUCT = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "testproject").rglob("*.py")])
THIS_FILE = Path(__file__).resolve()  # it names the phrases in order to find them
TESTING = sorted(
    path
    for folder in ("tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    # Hidden directories contain installed packages.
    if path != THIS_FILE and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
CODE = [*PRODUCT, *TESTING]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.lua"),
     *PACKAGE.rglob("*.html")]
)  # fmt: skip
QUOTING = {"glossary.md"}  # it names the phrases in order to replace them


def found(text: str) -> list[str]:
    """Return the phrases of the list in a text, across line breaks."""
    return [match.group() for match in PHRASE.finditer(" ".join(text.split()))]


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMMENT = re.compile(r"#.*(?:\n\s*(?:#.*)?)*")  # one that goes on in the next lines as a whole
END = "\0"  # of a string or comment; no phrase goes beyond it


@cache
def read(path: Path) -> tuple[str, list[str]]:
    """Return what people read of a module, and its docstrings.

    The first are its strings, as joined by the parser, and comments. A "#" within a string begins a
    comment, too: then it is read twice.
    """
    source = path.read_text()
    texts = [re.sub(r"\n\s*#+", "\n", comment) for comment in COMMENT.findall(source)]
    opening = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                texts.append(node.value)
        elif isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            opening.append(text)
    return END.join(texts), opening


@pytest.mark.slow
def test_code_uses_the_words_of_the_glossary() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {phrase}" for path in CODE for phrase in found(read(path)[0])
    ]


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {text}"
        for path in CODE
        for text in read(path)[1]
        if OPENING.match(text)
    ]


def test_documents_use_the_words_of_the_glossary() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in DOCUMENTS
        if path.name not in QUOTING
        for phrase in found(path.read_text())
    ]


@pytest.mark.parametrize(
    "text",
    [
        "The one who waits longest",
        "it is held by\nsomebody else",
        "The receiver is told of it",
        "begins anew",
        "MASTERS is no list",
        "for each colour",
        "the lock is given back",
        "a rule taken out",
    ],
)
def test_the_phrases_are_recognized(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text", ["a renewal", "the background colour", "text/html", "it is not a list", "call back"]
)
def test_plain_words_raise_no_alarm(text: str) -> None:
    assert not found(text)
