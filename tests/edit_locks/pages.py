"""The forms of a page as a browser would send them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from django.test import Client


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, list[tuple[str, str]]]] = []
        self._select = self._textarea = ""
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        name = about.get("name", "")
        if tag == "form":
            self.forms.append((about.get("id", ""), []))
        elif not self.forms:
            return
        elif tag == "input" and name:
            kind = about.get("type", "text")
            checked = kind not in ("checkbox", "radio") or "checked" in about
            if kind not in ("submit", "file") and checked:
                self.forms[-1][1].append((name, about.get("value", "")))
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in about and self._select:
            self.forms[-1][1].append((self._select, about.get("value", "")))
        elif tag == "textarea":
            self._textarea, self._text = name, ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        elif tag == "textarea" and self._textarea:
            self.forms[-1][1].append((self._textarea, self._text.removeprefix("\n").strip()))
            self._textarea = ""


def form_of(content: str, id: str = "") -> dict[str, list[str]]:  # noqa: A002 - HTML's word
    """Return the fields of the form with this id, by default of the last form of the page."""
    parser = _Forms()
    parser.feed(content)
    found = [pairs for name, pairs in parser.forms if name == id] if id else []
    pairs = (found or [pairs for _, pairs in parser.forms])[-1]
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


class OpenPage:
    """A page that an editor has open, with what has been entered."""

    def __init__(self, client: Client, path: str, form: str = "") -> None:
        self.client, self.path, self._form = client, path, form
        self.answer: Any = client.get(path)
        self._read()

    def _read(self) -> None:
        self.text = self.answer.content.decode()
        self.fields = form_of(self.text, self._form)
        about = re.search(r'data-redlock-page="(\w+)" data-ticket="([^"]*)"', self.text)
        self.page_id, self.ticket = about.groups() if about else ("", "")

    def send(self, values: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Send the form with these values; keep the page that is answered, unless it redirects."""
        entered = {**self.fields, **(values or {}), **more}
        self.answer = self.client.post(
            self.path, {name: value for name, value in entered.items() if value is not None}
        )
        if self.answer.status_code == 200:
            self._read()
        return self.answer
