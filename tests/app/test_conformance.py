"""The conformance runner: our shop passes, and each defect of a service fails its rule."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redlock_django.conformance import exchange, rules
from redlock_django.conformance.__main__ import main
from redlock_django.conformance.config import BadConfig, parse
from redlock_django.conformance.exchange import Service
from redlock_django.conformance.rules import NAMES, Outcome, Result
from redlock_django.testing.masters import local_masters
from testproject.shop.models import Order, Payment
from testproject.shop.serving import serving, shop_on
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]

CONFIG: dict[str, Any] = {
    "operation": {"path": "/pay/{new}", "body": "{new}", "success": [201]},
    "other": {"body": "another body"},
    "error": {"path": "/error/{new}"},
    "slow": {"path": "/slow/{new}"},
    "stream": {"path": "/stream/{new}"},
    "key": {"required": True, "expires_after": 10},
    "limits": {"rate": 10_000, "together": 3},
    "users": {"first": {"Authorization": "first"}, "second": {"Authorization": "second"}},
    "effects": {"path": "/effects/{new}", "json": "found.0.count"},
}


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Kept:
    """The record of a key: the body, the answer once there is one, and when."""

    body: bytes
    answer: Reply | None = None
    at: float = 0.0


class Shop:
    """A service that honours the header, but for one defect, which has the name of its rule."""

    def __init__(self, defect: str = "") -> None:
        self.defect = defect
        self.now = 0.0
        self.effects: dict[str, int] = {}
        self.kept: dict[str, Kept] = {}
        self.lock = threading.Lock()
        self.met: dict[str, threading.Event] = defaultdict(threading.Event)
        self.runs: dict[str, int] = {}

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.now += seconds

    def problem(self, status: int, **headers: str) -> Reply:
        """Return a refusal."""
        kind = "text/plain" if self.defect == "problem-details" else "application/problem+json"
        return status, {"Content-Type": kind, **headers}, b'{"type": "about:blank"}'

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer a POST."""
        key = headers.get("Idempotency-Key")
        if key is None:
            return self.run(path) if self.defect == "key-required" else self.problem(400)
        if wrong := self.malformed(key):
            return self.run(path) if self.defect == wrong else self.problem(400)
        if len(key) > 1000 and self.defect == "long-key":
            return self.problem(500)
        if self.defect != "other-user":
            key += headers["Authorization"]
        if self.defect == "other-key":
            key = path
        with self.lock:
            known = self.kept.get(key)
            if known is not None and self.defect != "expired" and self.now > known.at + 10:
                return self.problem(422)
            forgets = self.defect == "concurrent-effect" and path.startswith("/slow")
            if known is None or forgets or self.defect in ("replay", "one-effect"):
                known, is_first = Kept(body, None, self.now), True
                self.kept[key] = known
            else:
                is_first = False
        if not is_first:
            return self.again(path, body, known)
        known.answer = self.run(path)
        if self.defect == f"{path.split('/')[1]}-forgotten":
            del self.kept[key]
        return known.answer

    def malformed(self, key: str) -> str:
        """Return the rule that a malformed key is of, "" if it is a String."""
        if key == '""':
            return "empty-key"
        if not key.isascii():
            return "odd-key"
        if not key.startswith('"'):
            return "bare-key"
        return "malformed-key" if key.count('"') != 2 else ""

    def again(self, path: str, body: bytes, known: Kept) -> Reply:
        """Answer a request whose key is known."""
        self.met[path].set()
        if body != known.body and self.defect != "other-body":
            return self.problem(422)
        if known.answer is None and self.defect != "concurrent":
            return self.problem(
                409, **({} if self.defect == "retry-after" else {"Retry-After": "1"})
            )
        until(lambda: known.answer is not None, what="the first request is over")
        assert known.answer
        status, headers, content = known.answer
        if self.defect == "replay-headers":
            headers = {**headers, "Location": "/elsewhere"}
        if self.defect == "after-conflict" and path.startswith("/slow"):
            return self.problem(500)
        return status, headers, content

    def run(self, path: str) -> Reply:
        """Take effect."""
        _, kind, new = path.split("/")
        with self.lock:
            self.effects[new] = number = self.effects.get(new, 0) + 1
        if self.defect == "first-request":
            return self.problem(500)
        if kind == "slow":  # until there is another request with this key
            if number > 1:
                self.met[path].set()
            assert self.met[path].wait(60)
        if kind == "error":
            return 404, {"Content-Type": "text/plain"}, b"no such order, %d" % number
        content = b"paid" if self.defect == "one-effect" else b"paid, %d" % number
        return 201, {"Content-Type": "text/plain", "Location": path}, content


@contextmanager
def served(shop: Shop) -> Iterator[str]:
    """Serve it and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            count = shop.effects.get(self.path.rpartition("/")[2], 0)
            self.reply(200, {}, json.dumps({"found": [{"count": count}]}).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.reply(*shop.answer(self.path, dict(self.headers.items()), body))

        def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def results(shop: Shop, monkeypatch: pytest.MonkeyPatch, **tables: Any) -> dict[str, Result]:
    """Return what the runner says of a service."""
    monkeypatch.setattr(rules, "time", SimpleNamespace(sleep=shop.sleep))
    with served(shop) as url:
        config = parse({**CONFIG, **tables}, NAMES)
        return {one.rule.name: one for one in rules.run(Service(url, config))}


def test_a_service_that_honours_the_header_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(Shop(), monkeypatch)
    assert {name: one.why for name, one in found.items() if one.outcome is not Outcome.PASS} == {}
    assert list(found) == NAMES


# Rules that see another rule's defect, too.
TOO = {
    "replay": {*NAMES},  # without a record, hardly any rule is kept
    "one-effect": {*NAMES},
    "after-conflict": {"concurrent"},
    "other-key": {"other-user"},
    "concurrent-effect": {"after-conflict", "concurrent", "retry-after"},
    "error-forgotten": {"error-replayed"},
    "stream-forgotten": {"stream"},
}


@pytest.mark.parametrize(
    "defect",
    [*(name for name in NAMES if name not in ("stream", "error-replayed")),
     "error-forgotten", "stream-forgotten"],
)  # fmt: skip
def test_a_defect_fails_its_rule_and_shows_the_exchanges(
    monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    found = results(Shop(defect), monkeypatch)
    failed = {name for name, one in found.items() if one.outcome is Outcome.FAIL}
    expected = {defect} & {*NAMES} | TOO.get(defect, set())
    assert {defect} & {*NAMES} <= failed <= expected
    for name in failed:
        assert found[name].why
        assert found[name].exchanges


def test_our_shop_passes_with_its_stated_differences(
    django_db_setup: None, django_db_blocker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ROOT / "testproject/shop/conformance.toml"
    with (
        django_db_blocker.unblock(), local_masters(3) as masters,
        shop_on(masters, MASTER_TIMEOUT=4), serving() as url,
    ):  # fmt: skip
        Order.objects.bulk_create(Order(number=f"C-{number}", total=100) for number in range(30))
        assert main([url, "--config", str(config), "--format", "json"]) == 0
        paid = Order.objects.filter(state=Order.State.PAID).count()
        assert Payment.objects.count() == paid > 0
    report = json.loads(capsys.readouterr().out)
    outcomes = {one["name"]: one["outcome"] for one in report["rules"]}
    assert {name for name, one in outcomes.items() if one == "not tried"} == {
        *("key-required", "one-effect", "expired", "stream")
    }
    assert {name for name, one in outcomes.items() if one == "differs as stated"} == {"bare-key"}


def test_a_stated_difference_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"retry-after": "the header is not sent", "replay": "it is 200"}
    found = results(Shop("retry-after"), monkeypatch, differs=stated)
    assert found["retry-after"].outcome is Outcome.DIFFERS
    assert found["retry-after"].why == "the header is not sent (Retry-After is missing)"
    assert found["replay"].why == "a difference was stated, and is not there"


def test_no_more_requests_are_sent_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    found = results(shop, monkeypatch, limits={"requests": 5, "rate": 10_000})
    assert sum(len(one.exchanges) for one in found.values()) == 5
    assert "[limits] requests: 5 have been sent" in {one.why for one in found.values()}


def test_the_rules_about_requests_at_once_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(Shop(), monkeypatch)
    shown = [
        [each for each in found[name].exchanges if each.method == "POST"]
        for name in ("concurrent", "concurrent-effect", "retry-after")
    ]
    assert len(shown[0]) == 3
    assert shown[0] == shown[1] == shown[2]


def test_requests_are_sent_at_the_rate_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(waited), sleep=waited.append)
    monkeypatch.setattr(exchange, "time", clock)
    found = results(Shop(), monkeypatch, limits={"rate": 4, "together": 2})
    sent = len({id(each) for one in found.values() for each in one.exchanges})
    assert sum(waited) == pytest.approx((sent - 1) / 4)


def test_a_redirect_to_another_host_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    monkeypatch.setattr(shop, "run", lambda path: (302, {"Location": "http://192.0.2.1/"}, b""))
    found = results(shop, monkeypatch)
    assert found["first-request"].why == "status 302 instead of one of [201]"


def test_a_service_that_cannot_be_reached_fails_the_first_rule() -> None:
    config = parse({**CONFIG, "limits": {"timeout": 5}}, NAMES)
    first, *others = rules.run(Service(f"http://127.0.0.1:{free_port()}", config))
    assert first.outcome is Outcome.FAIL
    assert "Connection refused" in first.why
    assert {one.outcome for one in others} == {Outcome.NOT_TRIED}


def test_a_report_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "cases.toml"
    config.write_text(
        '[operation]\npath = "/pay/{new}"\nsuccess = [299]\n'
        '[users.first]\nAuthorization = "Bearer swordfish"\nX-Api-Key = "swordfish"\n'
        'X-Staff = "swordfish"\n'
    )
    with served(Shop()) as url:
        for form in ("table", "json"):
            assert main([url, "--config", str(config), "--format", form]) == 1
    shown = capsys.readouterr().out
    assert "swordfish" not in shown
    assert "status 201 instead of one of [299]" in shown
    assert "POST /pay/" in shown


def test_no_other_part_of_the_package_is_imported() -> None:
    code = (
        "import sys, redlock_django.conformance.__main__; print(sorted(name for name in sys.modules"
        " if name.split('.')[0] in ('django', 'redis') or name.startswith('redlock_django.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(re.findall(r"'([\w.]+)'", done.stdout)) == {
        "redlock_django.conformance",
        *(
            f"redlock_django.conformance.{name}"
            for name in ("__main__", "config", "exchange", "rules")
        ),
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "[operation] path is missing"),
        ({"operations": {}}, "[operations] is not known; known are differs, effects, error"),
        ({"operation": {"path": "/a", "verb": "PUT"}}, "[operation] verb is not known"),
        ({"operation": {"path": "http://other.example/"}}, "path must begin with one slash"),
        ({"operation": {"path": "//other.example/"}}, "path must begin with one slash"),
        ({"operation": {"path": "/a", "body": 1}}, "[operation] body must be of type str, got 1"),
        ({"operation": {"path": "/a"}, "limits": {"rate": 0}}, "[limits] rate must be positive"),
        ({"operation": {"path": "/a"}, "limits": {"requests": True}}, "must be of type int"),
        ({"operation": {"path": "/a"}, "limits": {"together": 500}}, "together must be 2 to 50"),
        ({"operation": {"path": "/a"}, "differs": {"replays": "x"}}, "[differs] replays is not"),
        ({"operation": {"path": "/a"}, "users": {"second": {}}}, "[users] first is missing"),
        ({"operation": {"path": "/a"}, "effects": {"path": "/b"}}, "[effects] needs path and json"),
        ({"operation": {"path": "/a"}, "session": {"open": "b"}}, "[session] open must begin with"),
        ({"operation": {"path": "/a", "success": ["201"]}}, "success must be a list of numbers"),
        ({"operation": {"path": "/a", "headers": {"A": [1]}}}, "headers must be the names of"),
        (
            {"operation": {"path": "/a"}, "users": {"first": {"A": {}}}},
            "first must be the names of",
        ),
        ({"operation": "/a"}, "operation must be a table"),
    ],
)
def test_a_bad_configuration_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig) as error:
        parse(document, NAMES)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("url", "text", "message"),
    [
        ("ftp://a", "[operation]\npath = '/'", "the URL must be http://HOST or https://HOST"),
        ("http://a:99999", "[operation]\npath = '/'", "the URL is not valid: Port out of range"),
        ("http://a/b", "[operation]\npath = '/'", "the URL must have no path"),
        ("http://:pw@a", "[operation]\npath = '/'", "the URL must have no path and no user"),
        ("http://a", "operation =", "not TOML"),
        ("http://a", None, "No such file"),
    ],
)
def test_a_bad_command_line_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, text: str | None, message: str
) -> None:
    config = tmp_path / "cases.toml"
    if text is not None:
        config.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([url, "--config", str(config)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
