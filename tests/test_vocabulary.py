"""Phrases that a reader would stumble over stay out of documents, strings and comments.

The list is short and exact, so that it raises no false alarm. What it cannot see is for review.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.pages import ROOT

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

# Hidden directories contain installed packages; this file and a glossary name the phrases.
READ = [
    path
    for folder in ("", "docs", "redlock_django", "testproject", "tests", "benchmarks")
    for path in ((ROOT / folder).rglob("*") if folder else ROOT.glob("*.md"))
    if path.suffix in {".py", ".md", ".lua", ".html"}
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    if path.name not in {"test_vocabulary.py", "glossary.md"}
]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def found(text: str) -> list[str]:
    """Return the phrases of the list in a text, across line breaks, comments and strings."""
    return [
        match.group() for match in PHRASE.finditer(" ".join(re.sub(r"[\"#]", " ", text).split()))
    ]


@pytest.mark.slow
def test_documents_and_code_use_the_words_of_the_glossary() -> None:
    assert len(READ) > 500
    assert [f"{path}: {phrase}" for path in READ for phrase in found(path.read_text())] == []


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    wrong = []
    for path in [path for path in READ if path.suffix == ".py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            wrong += [f"{path}: {text}"] if text and OPENING.match(text) else []
    assert not wrong


def test_phrases_are_recognized_and_plain_words_raise_no_alarm() -> None:
    for text in ("The one who waits longest", "it is held by\nsomebody else", "for each colour"):
        assert found(text)
    for text in (
        "a renewal",
        "the background colour",
        "text/html",
        "it is not a list",
        "call back",
    ):
        assert not found(text)
