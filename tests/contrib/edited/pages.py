"""Pages as a browser has them: forms that are sent, and reports of the script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from django.test import Client

MOMENT = r".+, (?:\d\S* [ap]\.m\.|noon|midnight)"
"""A regular expression of a date and time as Django writes them."""


class Form(HTMLParser):
    """The form with an id: its URL and its fields."""

    def __init__(self, content: str, form_id: str) -> None:
        super().__init__()
        self._id, self._is_inside, self._select, self._textarea = form_id, False, "", ""
        self.action = ""
        self.fields: dict[str, list[str]] = {}
        self.feed(content)

    def _add(self, name: str, value: str) -> None:
        self.fields.setdefault(name, []).append(value)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        name, kind = about.get("name", ""), about.get("type", "text")
        if tag == "form":
            self._is_inside = about.get("id") == self._id
            self.action = about.get("action", "") if self._is_inside else self.action
        elif not self._is_inside:
            return
        elif tag == "input" and name and kind not in ("submit", "file"):
            if kind not in ("checkbox", "radio") or "checked" in about:
                self._add(name, about.get("value", ""))
        elif tag in ("select", "textarea"):
            self._select, self._textarea = (name, "") if tag == "select" else ("", name)
            if tag == "textarea":
                self.fields[name] = [""]
        elif tag == "option" and "selected" in about and self._select:
            self._add(self._select, about.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self._textarea:
            self.fields[self._textarea] = [data.strip()]

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_inside = False
        elif tag in ("select", "textarea"):
            self._select = self._textarea = ""


class OpenPage:
    """A change form that an editor has open, with what has been entered."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path = client, path
        self.ticket = ""
        self.answer: Any = client.get(path)
        self._read()

    def _read(self) -> None:
        self.text = self.answer.content.decode()
        found = re.search(r'<form[^>]* id="(\w+_form)"', self.text)
        form = Form(self.text, found[1] if found else "")
        self.fields, self.action = form.fields, form.action
        about = re.search(r'<script src="[^"]*edit-lock.js"([^>]*)>', self.text)
        self.script = dict(re.findall(r'data-(\w+)="([^"]*)"', about[1])) if about else {}

    def send(self, values: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Send the form with these values; keep the page that is answered, unless it redirects."""
        entered = {**self.fields, "_save": "Save", **(values or {}), **more}
        entered = {name: value for name, value in entered.items() if value is not None}
        self.answer = self.client.post(urljoin(self.path, self.action), entered)
        if self.answer.status_code == 200:
            self._read()
        return self.answer

    @property
    def errors(self) -> list[str]:
        """The errors of the whole form."""
        found = re.search(r'<ul class="errorlist nonfield"[^>]*>(.*?)</ul>', self.text, re.DOTALL)
        return re.findall(r"<li>(.*?)</li>", found[1], re.DOTALL) if found else []

    def report(self, client: Client | None = None, **more: Any) -> Any:
        """Report as the script does; return its answer, without the ticket that it keeps."""
        sent = {"ticket": self.ticket, **more}
        answer = (client or self.client).post(self.script["url"], sent)
        if answer.status_code != 200:
            return answer.status_code
        said = answer.json()
        self.ticket = said.pop("ticket", "")
        return said
