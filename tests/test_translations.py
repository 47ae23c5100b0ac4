"""The catalogues in `redlock_django/locale/` are complete, current and compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from django.test import RequestFactory
from django.utils import translation

from redlock_django.exceptions import ResourceLocked
from redlock_django.web.answers import answer
from tests.pages import ROOT

PACKAGE = ROOT / "redlock_django"
LANGUAGES = sorted(path.name for path in (PACKAGE / "locale").iterdir())

pytestmark = pytest.mark.parametrize("language", LANGUAGES)


def folder(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES"


@cache
def catalogue(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file)


def messages(catalog: Catalog) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the translations by message; each with its singular and its plural, if it has one."""
    return {_forms(message.id): _forms(message.string) for message in catalog if message.id}


def _forms(text: str | Iterable[str] | None) -> tuple[str, ...]:
    return (text or "",) if isinstance(text, str | None) else tuple(text)


def test_every_message_is_translated_with_its_placeholders(language: str) -> None:
    catalog = catalogue(folder(language) / "django.po")
    wrong = [(message.id, errors) for message, errors in catalog.check()]
    missing = [
        message.id
        for message in catalog
        if message.id and (message.fuzzy or not all(_forms(message.string)))
    ]
    assert (wrong, missing) == ([], [])


def test_the_compiled_catalogue_is_that_of_the_source(language: str) -> None:
    with (folder(language) / "django.mo").open("rb") as file:
        compiled = messages(read_mo(file))
    assert compiled == messages(catalogue(folder(language) / "django.po"))


@pytest.fixture(scope="module")
def found_in_the_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package whose catalogues have the messages that its code has."""
    if shutil.which("xgettext") is None:
        pytest.skip("xgettext is not installed: it is part of the package gettext")
    source = tmp_path_factory.mktemp("messages") / "redlock_django"
    kept = shutil.ignore_patterns("__pycache__", "*.mo", "*.lua")
    shutil.copytree(PACKAGE, source, ignore=kept)
    languages = [f"--locale={language}" for language in LANGUAGES]
    subprocess.run(
        [sys.executable, "-m", "django", "makemessages", *languages, "--no-obsolete"],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    return source


@pytest.mark.slow
def test_the_catalogue_has_the_messages_of_the_code(language: str, found_in_the_code: Path) -> None:
    found = catalogue(found_in_the_code / "locale" / language / "LC_MESSAGES" / "django.po")
    assert set(messages(found)) == set(messages(catalogue(folder(language) / "django.po")))


REFUSED = {
    "de": "Eine andere Anfrage verwendet diese Ressource.",
    "fr": "Une autre requête utilise cette ressource.",
}


def test_a_refusal_is_in_the_language_of_the_request(language: str) -> None:
    request = RequestFactory().post("/orders/7/pay/", headers={"Accept": "text/html"})
    with translation.override(language):
        response = answer(request, ResourceLocked("order:7: held by another client"))
        assert REFUSED[language] in response.content.decode()
