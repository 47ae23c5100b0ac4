"""Stored responses that are encrypted with ENCRYPTION_KEYS."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import Permission, User
from django.core.cache import caches
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from redlock_django import idempotent
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import settings_of
from redlock_django.models import IdempotencyRecord
from testproject.urls import urlpatterns as shop_and_admin
from tests.idempotency.conftest import Site, make_order, orders, record

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW, OTHER = (Fernet.generate_key().decode() for _ in range(3))
SECRET = "canary-4111"


def pay(request: HttpRequest, **_: Any) -> HttpResponse:
    make_order(request)
    return HttpResponse(f"card {SECRET}", status=201, headers={"X-Card": SECRET})


class EncryptedSite:
    """A site whose responses contain a secret, with a choice of keys."""

    def __init__(self, site: Site, store: str) -> None:
        self.post = site.post
        self._site, self._store = site, store
        caches["default"].clear()
        site.serve(idempotent(pay))

    def use(self, *keys: str) -> None:
        """Deploy these keys everywhere."""
        given = {"ENCRYPTION_KEYS": keys} if keys else {}
        self._site.configure(KEEP_HEADERS=["X-Card"], **given)

    def stored(self) -> str:
        """Return everything that the store contains."""
        cache: Any = caches["default"]
        rows = [(row | {"body": bytes(row["body"])}) for row in IdempotencyRecord.objects.values()]
        return repr(rows) + repr(cache._cache)


@pytest.fixture(params=["database"])
def encrypted(request: pytest.FixtureRequest, site: Site) -> EncryptedSite:
    return EncryptedSite(site, request.param)


def is_replay(answer: Any) -> bool:
    assert (answer.status_code, answer.content) == (201, f"card {SECRET}".encode())
    assert answer["X-Card"] == SECRET
    return bool(answer["Idempotent-Replayed"] == "true")


def test_the_store_contains_no_text_of_the_response_and_a_retry_gets_all_of_it(
    encrypted: EncryptedSite,
) -> None:
    encrypted.use(OLD)
    assert not is_replay(encrypted.post())
    assert is_replay(encrypted.post())
    stored = encrypted.stored()
    assert "gAAAA" in stored  # the beginning of every Fernet token
    for text in (SECRET, "X-Card", "text/html"):
        assert text not in stored, text
    assert orders() == 1


def test_keys_change_in_two_steps_while_every_retry_gets_its_answer(
    encrypted: EncryptedSite,
) -> None:
    encrypted.use()
    encrypted.post("in-plain-text")
    encrypted.use(OLD)
    encrypted.post("old")
    encrypted.use(OLD, NEW)  # step 1: every process can decrypt what any other one writes
    encrypted.post("between")
    encrypted.use(NEW, OLD)  # step 2
    encrypted.post("new")
    for key in ("in-plain-text", "old", "between", "new"):
        assert is_replay(encrypted.post(key)), key
    encrypted.use(NEW)
    assert is_replay(encrypted.post("new"))
    assert encrypted.post("old").status_code == 409
    assert orders() == 4


@pytest.mark.parametrize("keys", [(OTHER,), ()])
def test_without_the_key_a_retry_is_refused_and_runs_nothing(
    encrypted: EncryptedSite, keys: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    encrypted.use(OLD)
    encrypted.post()
    encrypted.use(*keys)
    with caplog.at_level(logging.ERROR):
        answer = encrypted.post()
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency-result-unavailable")
    assert orders() == 1
    (logged,) = [entry for entry in caplog.records if "ENCRYPTION_KEYS" in entry.getMessage()]
    assert "cannot be decrypted" in logged.getMessage()
    assert logged.exc_info is None
    encrypted.use(*keys, OLD)
    assert is_replay(encrypted.post())


def test_a_response_that_was_copied_to_another_record_is_not_replayed(site: Site) -> None:
    encrypted = EncryptedSite(site, "database")
    encrypted.use(OLD)
    encrypted.post("mine")
    stolen = bytes(record().body)
    encrypted.post("theirs")
    IdempotencyRecord.objects.update(body=stolen)
    assert is_replay(encrypted.post("mine"))
    assert encrypted.post("theirs").status_code == 409


@pytest.mark.parametrize(
    "body",
    [b"", b"gAAAA", b"\xff", Fernet(OLD).encrypt(b"7"), Fernet(OLD).encrypt(b"not JSON")],
    ids=["empty", "cut", "no text", "another type", "no JSON"],
)
def test_a_record_that_is_not_encrypted_is_refused_and_not_replayed(
    site: Site, body: bytes
) -> None:
    encrypted = EncryptedSite(site, "database")
    encrypted.use(OLD)
    encrypted.post()
    IdempotencyRecord.objects.update(body=body)
    assert encrypted.post().status_code == 409
    assert orders() == 1


def test_the_admin_decrypts_for_users_with_the_permission_only(site: Site) -> None:
    encrypted = EncryptedSite(site, "database")
    site.put(path("orders/", idempotent(pay)), *shop_and_admin)
    encrypted.use(OLD)
    encrypted.post()

    def page(*codenames: str) -> str:
        user = User.objects.create_user("-".join(codenames), is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        url = f"/admin/redlock_django/idempotencyrecord/{record().pk}/change/"
        return client.get(url).content.decode()

    reader = page("view_idempotencyrecord")
    assert SECRET not in reader
    assert "gAAAA" not in reader
    assert f"card {SECRET}" in page("view_idempotencyrecord", "view_idempotency_body")
    encrypted.use(OTHER)
    User.objects.filter(is_staff=True).delete()
    html = page("view_idempotencyrecord", "view_idempotency_body")
    assert "encrypted with a key that is not in ENCRYPTION_KEYS" in html
    assert "gAAAA" not in html


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("x" * 44, "ENCRYPTION_KEYS must be a list of Fernet keys"),
        ([], "ENCRYPTION_KEYS must be a list of Fernet keys"),
        ([OLD, SECRET], r"ENCRYPTION_KEYS\[1\] is not a Fernet key.*Make one: python -c"),
        ([OLD, 7], r"ENCRYPTION_KEYS\[1\] is not a Fernet key"),
    ],
)
def test_a_bad_key_is_named_and_not_shown(site: Site, keys: Any, message: str) -> None:
    site.configure(ENCRYPTION_KEYS=keys)
    with pytest.raises(InvalidRedlock, match=message) as caught:
        settings_of("default")
    assert SECRET not in str(caught.value)
    assert [error.id for error in run_checks(tags=["redlock"])] == ["redlock_django.E001"]


def test_a_missing_package_is_named_with_the_way_to_install_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without_cryptography(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_cryptography)
    site.configure(ENCRYPTION_KEYS=[OLD])
    (error,) = run_checks(tags=["redlock"])
    assert error.id == "redlock_django.E001"
    assert "pip install 'redlock-django[encryption]'" in error.msg
