"""A canary password and the token of a held lock do not appear in any output."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core import checks
from django.core.management import CommandError, call_command
from django.dispatch import Signal
from django.test import Client, RequestFactory
from django.urls import NoReverseMatch, reverse
from django.views.debug import ExceptionReporter

from redlock_django import RedlockError, lock, lock_resource, signals
from redlock_django.backends.redis import RedisBackend
from redlock_django.engine.inspection.holders import Sighting
from redlock_django.engine.protocol.commands import COMMANDS, Acquire
from redlock_django.engine.validity import RedlockLease
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.lock import Lock
from redlock_django.locking.reports import counters
from redlock_django.locking.services import locks
from redlock_django.models import IdempotencyRecord
from redlock_django.operate.forced_release import force_release
from redlock_django.operate.health import master_status
from redlock_django.operate.inspection import held_locks
from redlock_django.web.answers import answer
from redlock_django.wire.servers.acl import least_acl
from tests.live.left_over import locked
from tests.operate.commands import run
from tests.timeouts import redlock_of
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.django_db]

CANARY = "canary-7d1"
LOGIN = {"username": "shop", "password": CANARY}
R = "order:1"


@pytest.fixture
def site(masters: list[LocalMaster], settings: Settings) -> Iterator[list[LocalMaster]]:
    """Three masters with a password from a URL, from OPTIONS, and from a cache."""
    three = masters[:3]
    for master in three:
        with master.client() as client:
            rights = least_acl("redlock", looking=True).split()
            client.execute_command("ACL", "SETUSER", "shop", "on", f">{CANARY}", *rights)
    with_password = [m.url.replace("redis://", f"redis://shop:{CANARY}@") for m in three]
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": with_password[2],
            "OPTIONS": {"PASSWORD": CANARY},
        },
    }
    wrong = redlock_of(
        with_password[0].replace(CANARY, f"{CANARY}-wrong"),
        three[1].url,
        OPTIONS={"username": "shop", "password": f"{CANARY}-wrong"},
    )
    right = redlock_of(with_password[0], three[1].url, "cache:locks", OPTIONS=LOGIN)
    settings.REDLOCK = {**right, "locked out": wrong["default"]}
    run("redlock_init")
    yield three
    locks.close()
    for master in three:
        master.resume()
        with master.client() as client:
            client.execute_command("ACL", "DELUSER", "shop")


@pytest.fixture
def held(site: list[LocalMaster]) -> Iterator[Lock]:
    """A lock that is held and stored on every master."""
    taken = lock(R, ttl=60, holder={"path": "/pay/"})

    def everywhere() -> bool:
        # A master without a connection would get the lock only with a later renewal.
        taken.acquire()
        if locked(site) == {f"redlock:lock:{R}": 3}:
            return True
        taken.release()
        return False

    until(everywhere, what="on all masters")
    yield taken
    taken.release()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return a function that returns the log with all fields of every record."""
    caplog.set_level(logging.DEBUG)
    return lambda: caplog.text + "".join(repr(vars(record)) for record in caplog.records)


def token_of(held: Lock) -> str:
    assert held._held_lease is not None
    return held._held_lease.lease.token


def is_clean(output: str, *expected: str, token: str = "no token") -> None:
    for word in expected:
        assert word in output  # The output is the expected one.
    assert "canary" not in output
    assert token not in output


def test_commands_show_no_secret(held: Lock, logged: Callable[[], str]) -> None:
    fingerprint = held.fingerprint
    output = ""
    for form in ("table", "json"):
        for using in ("default", "locked out"):
            for command in (
                ["list_locks"],
                ["list_locks", "--search", "order"],
                ["redlock_status"],
            ):
                output += str(run(*command, "--using", using, f"--format={form}"))
    for using in ("default", "locked out"):
        output += str(held_locks(using, search="order"))
        output += str(run("release_lock", R, "--using", using))  # stdin is not a terminal
        named = ("--noinput", "--holder", fingerprint)
        output += str(run("release_lock", "order:2", "--using", using, *named))
        output += str(run("redlock_init", "--using", using))
        output += str(run("redlock_init", "--reconfigure", "--using", "locked out"))
        output += str(run("with_lock", "order:9", "--using", using, "--", "true"))
    output += str(run("release_lock", R, *named))
    output += logged()
    is_clean(
        output,
        fingerprint,
        "refused the password",
        "released by force",
        "empties it",
        token=token_of(held),
    )


def test_system_checks_show_no_secret(site: list[LocalMaster], settings: Settings) -> None:
    bad = [
        f"redis://:{CANARY}/x@host",
        f"redis://u:{CANARY}#x@host:1",
        f"redis://host:{CANARY}",
        f"redis://host/{CANARY}",
        f"redis://host?password={CANARY}&nope={CANARY}",
        f"http://u:{CANARY}@host",
        f"redis://u:{CANARY} x@host",
    ]
    settings.REDLOCK |= {f"bad {n}": {"MASTERS": [url]} for n, url in enumerate(bad)}
    settings.REDLOCK["wrong kind"] = {"MASTERS": ["redis://h"], "OPTIONS": {"password": [CANARY]}}
    settings.REDLOCK = dict(settings.REDLOCK)
    messages = checks.run_checks(include_deployment_checks=True, databases=["default"])
    numbers = {message.id for message in messages}
    assert {f"redlock_django.{n}" for n in ("E001", "W020", "W005", "W026")} <= numbers
    output = repr(messages) + "".join(f"{m} {m.msg} {m.hint} {m.obj}" for m in messages)
    err = StringIO()
    with suppress(CommandError) as caught:
        call_command("check", "--deploy", "--database=default", stderr=err)
    is_clean(f"{output}{err.getvalue()}{caught}", "refused the password", "percent-encoded")
    for alias in settings.REDLOCK:
        try:
            output += repr(locks[alias])
        except InvalidRedlock as error:
            output += everything_about(error)
    is_clean(output)


def test_no_page_of_the_admin_shows_a_secret(held: Lock, logged: Callable[[], str]) -> None:
    User.objects.create_superuser("root")
    visitor = Client()
    visitor.force_login(User.objects.get())
    force_release("order:2", by="me")
    record = IdempotencyRecord.objects.create(key_hash="a" * 64, path="/pay/", method="POST")
    shown = held_locks().locks[0]
    lock_id = f"{shown.fingerprint}:{shown.resource}"
    visited, output = set(), ""
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label != "redlock_django":
            continue
        for pattern in model_admin.get_urls():
            for kwargs in ({}, {"object_id": quote(record.pk)}):
                try:
                    url = reverse(f"admin:{pattern.name}", kwargs=kwargs)
                except NoReverseMatch:
                    continue
                for using in ("default", "locked out"):
                    for response in (
                        visitor.get(url, {"using": using, "alias": using}, follow=True),
                        visitor.post(url, {"lock": lock_id}),
                        visitor.post(url, {"action": "mark_done", "_selected_action": record.pk}),
                    ):
                        assert response.status_code < 500
                        output += f"{response.headers} {response.content.decode()}"
                        visited.add(url)
    output += visitor.post(
        reverse("admin:redlock_django_heldlock_changelist"),
        {"lock": lock_id, "confirmed": "yes"},
        follow=True,
    ).content.decode()
    assert len(visited) >= 6
    is_clean(output + logged(), held.fingerprint, "/pay/", "released", token=token_of(held))


def everything_about(error: BaseException) -> str:
    """Return what a log, an error email or the debug page shows of an exception, and its reprs."""
    output = [repr(error), str(error), *traceback.format_exception(error), repr(vars(error))]
    seen: BaseException | None = error
    while seen is not None:
        output.append(f"{seen!r} {seen} {seen.args}")
        seen = seen.__cause__ or seen.__context__
    return "\n".join(output)


def debug_page(error: BaseException) -> str:
    """Return the text of Django's debug page, with the local variables of every frame."""
    reporter = ExceptionReporter(None, type(error), error, error.__traceback__)
    return str(reporter.get_traceback_html())


@pytest.mark.slow
def test_exceptions_and_answers_show_no_secret(
    held: Lock, site: list[LocalMaster], logged: Callable[[], str]
) -> None:
    errors: list[RedlockError] = []

    def failing(work: Callable[[], object]) -> None:
        with pytest.raises(RedlockError) as caught:
            work()
        errors.append(caught.value)

    failing(lock(R, using="locked out").acquire)
    failing(held.acquire)
    with pytest.raises(RedlockError) as refused:
        locks["default"].backend.acquire((R,), 5, 0, "{}")
    errors.append(refused.value)
    force_release(R, by="me")
    failing(held.extend)
    failing(held.ensure_held)
    for master in site:
        master.pause()
    failing(lock("order:2").acquire)
    output = "".join(map(everything_about, errors)) + logged()
    for accept in ("text/html", "application/json", "application/problem+json"):
        request = RequestFactory().get("/", headers={"accept": accept})
        answers = [answer(request, e) for e in errors if type(e).__name__ != "AlreadyHeld"]
        output += "".join(f"{a.headers}{a.content.decode()}" for a in answers)
    is_clean(
        output, "refused the password", "did not answer", "resource-locked", token=token_of(held)
    )


def in_options(settings: Settings, urls: list[str], **keys: Any) -> None:
    """Move the password to OPTIONS, as the documentation recommends."""
    settings.CACHES = {}
    settings.REDLOCK = redlock_of(*urls, OPTIONS=LOGIN, **keys)
    settings.DEBUG = True


@pytest.mark.attack
def test_the_debug_page_shows_no_secret(
    settings: Settings, held: Lock, site: list[LocalMaster]
) -> None:
    in_options(settings, [master.url for master in site])
    pages = ""

    class Kept:  # Its repr shows no attributes.
        inside: Lock
        token = ""

    @lock_resource("order:2")
    def view(request: Any) -> Any:
        inside = lock("order:2", reentrant=True).acquire()
        Kept.inside, Kept.token = inside, token_of(inside)
        raise RuntimeError("the view's own")

    request = RequestFactory().get("/")
    with pytest.raises(RuntimeError) as caught:
        view(request)
    pages += debug_page(caught.value)
    Kept.inside.release()  # its renewals would go on in later tests
    in_options(settings, [master.url for master in site], TTL=-1)
    with pytest.raises(InvalidRedlock) as wrong:
        lock(R).acquire()
    pages += debug_page(wrong.value)
    in_options(settings, ["redis://127.0.0.1:9"])
    with pytest.raises(RedlockError) as down:
        lock(R).acquire()
    pages += debug_page(down.value)
    is_clean(pages, "RuntimeError", "InvalidRedlock", "QuorumUnreachable", token=Kept.token)


@pytest.mark.attack
def test_reprs_show_no_secret(held: Lock) -> None:
    service = locks["default"]
    assert isinstance(service.backend, RedisBackend)
    links = service.backend.thread_driver().links
    held.extend()  # its lease has votes from then on
    assert held._held_lease is not None
    lease = held._held_lease.lease
    assert isinstance(lease, RedlockLease)
    said = Acquire(
        deployment=service.backend.deployment, resources=(R,), value=lease.value, ttl=1, proposal=1
    )
    things: list[Any] = [
        service, service.settings, service.backend, *service.backend.addresses,
        links, *links.masters, *(vars(master) for master in links.masters),
        held, held._held_lease, lease, lease.tally, lease.tally.votes, said, COMMANDS,
        held_locks(), held_locks().locks[0].holder, Sighting("m1", lease.value.encode(), 1.0),
        master_status(), master_status("locked out"), counters["default"],
    ]  # fmt: skip
    with pytest.raises(RedlockError) as refused:
        service.backend.acquire((R,), 5, 0, "{}")
    things += [refused.value, refused.value.tally]
    output = "".join(f"{thing!r}{thing!s}" for thing in things)
    is_clean(output, held.fingerprint, R, token=lease.token)


def test_signals_and_counters_have_no_secret(
    held: Lock, logged: Callable[[], str], hear: Callable[..., list[dict[str, Any]]]
) -> None:
    heard = hear(*(made for made in vars(signals).values() if isinstance(made, Signal)))
    with lock("order:2") as other:
        other_token = token_of(other)
    with suppress(RedlockError):
        lock(R, using="locked out").acquire()
    force_release(R, by="me")
    with suppress(RedlockError):
        held.extend()
    assert len(heard) >= 4
    text = "".join(map(repr, heard)) + logged()
    is_clean(text, held.fingerprint, token=token_of(held))
    is_clean(text, token=other_token)
