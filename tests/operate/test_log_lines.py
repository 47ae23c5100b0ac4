"""Data from requests, clients and servers cannot forge log lines or control a terminal."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis.exceptions import ResponseError

from redlock_django import RedlockError, lock, lock_resource
from redlock_django.operate.forced_release import force_release
from redlock_django.wire.servers.info import faults, read_info
from redlock_django.wire.servers.probe import ErrorReply, reaching
from tests.operate.commands import memory, put

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_memory")]

EVIL = "/\r\n2026-11-20 ERROR redlock order:2: forged\x1b[2J\u202e\u2028"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the formatted log lines; fail if there are none."""
    formatted = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    assert formatted
    return formatted


def test_the_path_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @lock_resource("order:1")
    def view(request: HttpRequest) -> HttpResponse:
        force_release("order:1", by=EVIL)
        with pytest.raises(RedlockError):
            lock("order:1", reentrant=True).acquire().extend()
        memory().down[:] = [True] * 3
        return HttpResponse()

    request: Any = RequestFactory().get("/")
    request.path = EVIL
    view(request)
    assert view(request).status_code == 503
    for line in lines(caplog):
        assert line.isprintable(), line


@pytest.mark.attack
def test_the_value_of_another_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    put("order:1", EVIL.encode())
    with pytest.raises(RedlockError):
        lock("order:1").acquire()
    force_release("order:1", by="me")
    put("order:1", b"a" * 32 + b' {"path": "\\r\\n\\u001b[2J", "host\\n": "x"}')
    force_release("order:1", by="me")
    for line in lines(caplog):
        assert line.isprintable(), line


def test_the_words_of_a_server_are_made_printable() -> None:
    with pytest.raises(ErrorReply) as refused, reaching(1.0):
        raise ResponseError("\x1b[31mEVIL\x07 rest")
    assert str(refused.value) == "answered ERR (see its log)"
    info = read_info(b"redis_version:4.\x1b[2J\xff\r\nrole:master\r\nmaxmemory_policy:\x9b2J\r\n")
    assert all(str(one).isprintable() for one in faults(info))
    assert info["role"] == "master"
