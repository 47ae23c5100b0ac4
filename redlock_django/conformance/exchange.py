"""Requests to one host: bounded in number and rate, without redirects and without proxies."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from redlock_django.conformance.config import NEW, BadConfig, Config, Operation

SECRET = ("authorization", "cookie", "set-cookie", "token", "secret", "password", "api-key")
HIDDEN = "***"
SHOWN = 500  # bytes of a body in the report


class TooManyRequests(Exception):
    """The number of requests that the configuration allows has been sent."""


class NoAnswer(Exception):
    """The service cannot be reached, or does not answer in time."""


@dataclass(frozen=True)
class Answer:
    """A response; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def same(self, other: Answer, headers: Sequence[str]) -> list[str]:
        """Return what differs from another response: "status", "body", names of headers."""
        found = ["status"] if self.status != other.status else []
        found += ["body"] if self.body != other.body else []
        return found + [
            name
            for name in headers
            if self.headers.get(name.lower()) != other.headers.get(name.lower())
        ]


@dataclass(frozen=True)
class HTTPExchange:
    """A request and its answer, for the report."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    answer: Answer

    def as_json(self) -> dict[str, Any]:
        """Return the exchange without secrets, with long bodies cut."""
        return {
            "request": {
                "line": f"{self.method} {self.path}",
                "headers": _public(self.headers),
                "body": _shown(self.body),
            },
            "response": {
                "status": self.answer.status,
                "headers": _public(self.answer.headers),
                "body": _shown(self.answer.body),
            },
        }


@dataclass(frozen=True)
class Burst:
    """The answers to requests that were sent at once, and the exchanges that show them.

    `before` is how often the operation with the value `new` had taken effect before.
    """

    answers: Sequence[Answer]
    new: str
    before: int | None
    exchanges: Sequence[HTTPExchange]


@dataclass
class Service:
    """The service under test, as its users reach it. Raises BadConfig for a bad URL."""

    url: str
    config: Config
    exchanges: list[HTTPExchange] = field(default_factory=list)
    sent: int = 0
    burst: Burst | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            self._port = parts.port
        except ValueError as error:
            raise BadConfig(f"the URL is not valid: {error}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BadConfig(f"the URL must be http://HOST or https://HOST, got {self.url!r}")
        if parts.path.strip("/") or parts.query or "@" in parts.netloc:
            raise BadConfig("the URL must have no path and no user: paths are in the configuration")
        self._host, self._secure = parts.hostname, parts.scheme == "https"
        self._cookies: dict[str, dict[str, str]] = {}
        self._next = 0.0
        self._values = iter(self.config.values)

    def new(self) -> str:
        """Return a value for `{new}`. Raises TooManyRequests if the configured ones are used up."""
        if not self.config.values:
            return secrets.token_hex(8)
        value = next(self._values, None)
        if value is None:
            raise TooManyRequests("[operation] values has no further value")
        return str(value)

    def send(
        self,
        operation: Operation,
        new: str,
        key: str | None = None,
        *,
        user: str = "first",
        raw: bool = False,
    ) -> Answer:
        """Send an operation with a key, quoted as the configuration says unless it is `raw`.

        Raises TooManyRequests and NoAnswer.
        """
        self._open(user)
        self._wait_for_turn()
        return self._send(operation, new, key, user, raw)

    def send_together(self, operation: Operation, new: str, key: str, many: int) -> list[Answer]:
        """Send an operation that many times at once, and return the answers. Raises like `send`."""
        self._open("first")
        self._wait_for_turn(many)
        with ThreadPoolExecutor(many) as pool:
            begun = [
                pool.submit(self._send, operation, new, key, "first", False) for _ in range(many)
            ]
        return [one.result() for one in begun]

    def _send(
        self, operation: Operation, new: str, key: str | None, user: str, raw: bool
    ) -> Answer:
        headers = {**operation.headers, **self.config.users[user]}
        if key is not None:
            quoted = self.config.quoted and not raw
            headers[self.config.header] = f'"{key}"' if quoted else key
        return self._ask(
            operation.method,
            operation.path.replace(NEW, new),
            headers,
            operation.body.replace(NEW, new).encode(),
            user,
        )

    def effects(self, new: str) -> int | None:
        """Return how often an operation took effect, None if the configuration cannot tell."""
        if not self.config.effects:
            return None
        path = self.config.effects["path"].replace(NEW, new)
        self._wait_for_turn()
        answer = self._ask("GET", path, dict(self.config.users["first"]), b"", "first")
        value: Any = None
        try:
            value = json.loads(answer.body)
            for name in filter(None, self.config.effects["json"].split(".")):
                value = value[int(name) if isinstance(value, list) else name]
        except (ValueError, LookupError, TypeError):
            value = None
        if not isinstance(value, int):
            raise NoAnswer(f"[effects] GET {path} has no number at {self.config.effects['json']!r}")
        return value

    def _open(self, user: str) -> None:
        """Make the visit that gives a user a session, once."""
        if user in self._cookies:
            return
        self._cookies[user] = {}
        if self.config.open:
            self._wait_for_turn()
            self._ask("GET", self.config.open, dict(self.config.users[user]), b"", user)

    def _ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes, user: str
    ) -> Answer:
        cookies = self._cookies.setdefault(user, {})
        kept = [headers["Cookie"]] if "Cookie" in headers else []
        kept += [f"{name}={value}" for name, value in cookies.items()]
        if kept:
            headers["Cookie"] = "; ".join(kept)
        connection = self._connection()
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            received = response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise NoAnswer(f"{method} {path}: {why}") from None
        finally:
            connection.close()
        shown = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, shown, received)
        self._keep_cookies(cookies, response.headers.get_all("Set-Cookie") or [])
        asked = {**headers, **dict.fromkeys(self.config.users[user], HIDDEN)}
        self.exchanges.append(HTTPExchange(method, path, asked, body, answer))
        return answer

    def _wait_for_turn(self, many: int = 1) -> None:
        """Wait until that many requests may be sent at once."""
        if self.sent + many > self.config.requests:
            raise TooManyRequests(f"[limits] requests: {self.sent} have been sent")
        self.sent += many
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + many / self.config.rate

    def _connection(self) -> http.client.HTTPConnection:
        timeout = self.config.timeout
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _keep_cookies(self, cookies: dict[str, str], lines: Sequence[str]) -> None:
        for line in lines:
            try:
                parsed = SimpleCookie(line)
            except CookieError:
                continue
            cookies.update({name: one.value for name, one in parsed.items()})


def _public(headers: Mapping[str, str]) -> dict[str, str]:
    hidden = {name for name in headers if any(word in name.lower() for word in SECRET)}
    return {name: HIDDEN if name in hidden else value for name, value in headers.items()}


def _shown(body: bytes) -> str:
    cut = " ".join(body[:SHOWN].decode(errors="replace").split())
    return cut + (f" ... ({len(body)} bytes)" if len(body) > SHOWN else "")
