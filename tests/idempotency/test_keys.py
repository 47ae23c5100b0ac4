"""Keys: their syntax, their scope and their hashes."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.exceptions import IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.key import (
    Idempotency,
    UserId,
    parse_key,
    request_hashes,
    scope_of,
    user_of,
)
from redlock_django.idempotency.records import RecordStore
from tests.idempotency.conftest import KEY, InThread, Site, make_order, orders, record

writes = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        ('  "abc"\t', "abc"),
        ('"abc";a=1;b', "abc"),
        ('"abc"; a="x"', "abc"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('"a b,c"', "a b,c"),
        (KEY, KEY),
        ("Zm9v+/=", "Zm9v+/="),
        ("urn:uuid:1", "urn:uuid:1"),
        ("k" * 255, "k" * 255),
    ],
)
def test_the_syntax_of_a_key(text: str, key: str) -> None:
    assert parse_key(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        '""',
        '"  "',
        "k" * 256,
        '"' + "k" * 256 + '"',
        "a b",
        "a,b",
        "a;b=1",
        '"a", "a"',
        '"a";b, "a"',
        '"a";b="ä"',
        '"a"x',
        '"a',
        'a"',
        '"a\nb"',
        "a\nb",
        '"ä"',
        "ä",
        "a\x00",
        '"a\\x"',
        "(1 2)",
        ":YWJj:",
        "::",
        # Only blanks and tabs are optional white space around a field's value.
        "\na",
        "a\x0b",
        "a\x1f",
        "a\x85",
        "\xa0a",
        '"a"\x0c',
        '\u2003"a"',
    ],
)
def test_invalid_keys(text: str) -> None:
    with pytest.raises(IdempotencyRefused, match="must be one string"):
        parse_key(text)


@given(st.text(max_size=300))
def test_whatever_is_sent_there_is_a_key_or_an_error(text: str) -> None:
    try:
        key = parse_key(text)
    except IdempotencyRefused:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_structured_string_is_decoded(key: str) -> None:
    if key.strip():
        quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        assert parse_key(quoted) == key


def test_a_message_never_quotes_the_key() -> None:
    with pytest.raises(IdempotencyRefused, match="must be one string") as caught:
        parse_key('"secret" and more')
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


# Scope.


@writes
def test_a_new_session_is_the_same_user(site: Site) -> None:
    site.serve(idempotent(make_order))
    site.post()
    site.client.logout()
    site.client.force_login(User.objects.get(username="ann"))
    assert site.post()["Idempotent-Replayed"] == "true"


@writes
def test_a_scope_for_anonymous_requests(site: Site) -> None:
    site.serve(
        idempotent(required=True, anonymous_scope=lambda request, **_: request.headers["X-Device"])(
            make_order
        )
    )
    site.post()
    site.client.logout()
    answers = [site.post(headers={"X-Device": device}) for device in ("1", "1", "2")]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true", "false"]
    assert orders() == 3


@writes
@pytest.mark.parametrize("empty", [None, ""])
def test_an_anonymous_scope_may_find_no_owner(site: Site, empty: Any) -> None:
    site.serve(idempotent(anonymous_scope=lambda request, **_: empty)(make_order))
    site.client.logout()
    answer = site.post()
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency-key-unscoped")
    assert orders() == 0


@writes
@pytest.mark.parametrize("empty", [0, False, b"x"])
def test_an_empty_scope_is_an_error_and_nothing_runs(site: Site, empty: Any) -> None:
    site.serve(idempotent(anonymous_scope=lambda request, **_: empty)(make_order))
    site.client.logout()
    assert site.post().status_code == 500
    assert orders() == 0


@writes
@pytest.mark.parametrize("where", ["decorator", "settings"])
def test_a_tenant_of_its_own(site: Site, where: str) -> None:
    if where == "decorator":
        site.serve(idempotent(tenant=tenant)(make_order))
    else:
        site.serve(idempotent(make_order), configured={"TENANT": f"{__name__}.tenant"})
    answers = [site.post(headers={"X-Tenant": name}) for name in ("a", "a", "b")]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true", "false"]
    assert site.post().status_code == 500


def tenant(request: HttpRequest, **_: Any) -> str | None:
    return request.headers.get("X-Tenant")


def test_a_user_without_a_pk_is_an_error() -> None:
    class Strange:
        is_authenticated = True
        pk = None

    with pytest.raises(InvalidRedlock, match="Strange"):
        user_of(Strange())
    assert user_of(AnonymousUser()) is None
    assert user_of(None) is None


def test_scopes_cannot_be_mistaken_for_each_other() -> None:
    seven = user_of(User(pk=7))
    every = [
        scope_of(seven, None, None, "a"),
        scope_of(seven, None, None, "b"),
        scope_of(UserId("7", "model shop.customer"), None, None, "a"),
        scope_of(UserId("7", "class auth.user"), None, None, "a"),
        scope_of(None, "7", None, "a"),
        scope_of(None, 'user", "7', None, "a"),
        scope_of(seven, None, "7", "a"),
        scope_of(seven, None, "a", "a"),
    ]
    assert None not in every
    assert len(set(every)) == len(every)
    assert scope_of(None, None, "7", "a") is None
    assert scope_of(seven, None, "7", "a") == scope_of(seven, None, "7", "b")


@pytest.mark.attack
@writes
def test_two_kinds_of_users_that_are_no_models_never_meet(site: Site) -> None:
    class Principal:
        is_authenticated = True
        pk = 7

    class Device(Principal):
        pass

    class Terminal(Principal):
        pass

    def as_user(request: Any, **_: Any) -> HttpResponse:
        kinds = {"device": Device, "terminal": Terminal}
        request.user = SimpleLazyObject(kinds[request.headers["X-Kind"]])
        return make_order_once(request)

    make_order_once = idempotent(make_order)
    site.serve(transaction.non_atomic_requests(as_user))
    answers = [site.post(headers={"X-Kind": kind}) for kind in ("device", "terminal", "device")]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "false", "true"]
    assert orders() == 2


@pytest.mark.attack
@writes
@pytest.mark.parametrize("shared", [False, True])
def test_each_host_has_keys_of_its_own_unless_a_tenant_is_named(site: Site, shared: bool) -> None:
    site.settings.ALLOWED_HOSTS = ["*"]
    hook: Any = {"tenant": lambda request, **_: "all"} if shared else {}
    site.serve(idempotent(**hook)(make_order))
    hosts = ("a.test", "b.test", "A.test:8000")
    answers = [site.post(headers={"Host": host}) for host in hosts]
    replayed = ["false", "true" if shared else "false", "true"]
    assert [answer["Idempotent-Replayed"] for answer in answers] == replayed
    assert orders() == (1 if shared else 2)


@writes
def test_a_sync_view_cannot_ask_a_coroutine_function(site: Site) -> None:
    async def check(request: HttpRequest, **_: Any) -> bool:
        return False

    site.serve(idempotent(replay_check=check)(make_order))
    assert [site.post().status_code for _ in range(2)] == [201, 500]


# Hashes.


@writes
def test_a_new_secret_key_forgets_nothing(site: Site, settings: Settings) -> None:
    site.serve(idempotent(anonymous_scope=lambda request, **_: "all")(make_order))
    client = Client(raise_request_exception=False)
    site.client = client
    site.post()
    old, settings.SECRET_KEY = settings.SECRET_KEY, "a new one"
    settings.SECRET_KEY_FALLBACKS = [old]
    assert site.post()["Idempotent-Replayed"] == "true"
    assert site.post(data={"total": 2}).status_code == 422
    assert orders() == 1


@writes
def test_a_secret_may_be_in_the_settings_twice(site: Site, settings: Settings) -> None:
    site.serve(idempotent(make_order))
    settings.SECRET_KEY_FALLBACKS = ["old", settings.SECRET_KEY, "old"]
    assert [site.post().status_code for _ in range(2)] == [201, 201]
    assert orders() == 1


@writes
@pytest.mark.usefixtures("records_in_a_file")
def test_a_process_that_has_the_old_secret_key_still_is_in_the_way(
    site: Site, settings: Settings
) -> None:
    answers: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        if not answers:
            old, settings.SECRET_KEY = settings.SECRET_KEY, "a new one"
            settings.SECRET_KEY_FALLBACKS = [old]
            answers.extend(
                InThread(lambda total=total: site.post(data={"total": total})).result  # type: ignore[misc]
                for total in (1, 2)
            )
        return HttpResponse()

    site.serve(idempotent(anonymous_scope=lambda request, **_: "all")(view))
    site.client = Client(raise_request_exception=False)
    site.post()
    assert [answer.status_code for answer in answers] == [409, 422]


def derived(request: Any, **_: Any) -> HttpResponse:
    """Return the derived key; a retry shows whether it ran."""
    return HttpResponse(request.idempotency.derived_key("charge"))


@pytest.mark.attack
@writes
@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_secret_changes_in_steps_that_overlap(site: Site, settings: Settings, first: int) -> None:
    """Processes of each step and of the next one serve the same keys."""
    steps = [["old"], ["old", "new"], ["new", "old"], ["new"]]

    def process(secrets: list[str]) -> None:
        settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS = secrets

    site.serve(idempotent(anonymous_scope=lambda request, **_: "all")(derived))
    site.client = Client(raise_request_exception=False)
    answers: list[Any] = []
    for step in (first, first + 1, first + 1, first):
        process(steps[step])
        answers.append(site.post(f"k{len(answers) // 2}"))
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"] * 2
    assert answers[0].content == answers[1].content


@pytest.mark.attack
@writes
def test_a_derived_key_does_not_depend_on_the_secret(site: Site, settings: Settings) -> None:
    site.serve(idempotent(anonymous_scope=lambda request, **_: "all")(derived))
    site.client = Client(raise_request_exception=False)
    first = site.post().content
    settings.SECRET_KEY = "another"
    again = site.post()
    assert (again["Idempotent-Replayed"], again.content) == ("false", first)


@writes
@pytest.mark.usefixtures("records_in_a_file")
def test_a_process_with_another_order_of_secrets_is_noticed_under_the_lock(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process records the key between the look at the records and the lock."""
    ran: list[int] = []
    find = RecordStore.find

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        ran.append(1)
        return HttpResponse()

    def slow(self: RecordStore, claim: Any) -> Any:
        found = find(self, claim)
        monkeypatch.setattr(RecordStore, "find", find)
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
        assert InThread(site.post).result.status_code == 200
        return found

    site.serve(idempotent(anonymous_scope=lambda request, **_: "all")(view))
    site.client = Client(raise_request_exception=False)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "old", ["new"]
    monkeypatch.setattr(RecordStore, "find", slow)
    assert site.post()["Idempotent-Replayed"] == "true"
    assert len(ran) == 1


@writes
def test_a_record_holds_hashes_only(site: Site, settings: Settings) -> None:
    site.serve(idempotent(make_order))
    site.post("k")
    assert len(record().key_hash) == len(record().fingerprint) == 64
    (first,) = request_hashes("scope", "k", b"x")
    settings.SECRET_KEY = "another"
    (second,) = request_hashes("scope", "k", b"x")
    assert first.key_hash != second.key_hash
    assert first.fingerprint != second.fingerprint


def test_an_idempotency_without_a_key() -> None:
    one, other = Idempotency(), Idempotency()
    assert not one.active
    assert one.derived_key("charge") == one.derived_key("charge") != other.derived_key("charge")
    one.complete(None)
    assert repr(one) == "<Idempotency without a key>"
