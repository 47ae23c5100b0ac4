"""Records in a cache: a known response is replayed, an unknown outcome is uncertain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.db import IntegrityError, OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient

from redlock_django import idempotent
from redlock_django.idempotency.flow.recorders import SeparateRecorder
from redlock_django.idempotency.key import Claim, RequestHashes
from redlock_django.idempotency.protocol import ViewOutcome
from redlock_django.idempotency.settings import settings_of, store_of
from redlock_django.idempotency.stores.base import AlreadyRecorded
from redlock_django.idempotency.stores.cache import CacheStore
from redlock_django.idempotency.stores.response import StoredResponse
from redlock_django.models import IdempotencyRecord
from tests.idempotency.conftest import (
    KEY,
    InThread,
    Site,
    cached_states,
    make_order,
    masters_forget,
    orders,
)

pytestmark = pytest.mark.django_db(transaction=True)
AUTOCOMMIT, ATOMIC = False, True


@pytest.fixture(autouse=True)
def _cached(site: Site) -> None:
    caches["default"].clear()
    site.configure(STORE="cache")


@pytest.fixture
def autocommit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)


def code(answer: Any) -> str:
    return str(answer.json()["code"])


@pytest.mark.parametrize("atomic", [True, False])
def test_a_retry_is_answered_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        make_order(request)
        return HttpResponse(bytes(range(256)), headers={"ETag": '"1"'}, status=201)

    site.serve(idempotent(view))
    first, second = site.post(), site.post()
    assert (second.status_code, second.content, second["ETag"]) == (201, first.content, '"1"')
    assert (first["Idempotent-Replayed"], second["Idempotent-Replayed"]) == ("false", "true")
    assert site.post(data={"total": 2}).status_code == 422
    assert orders() == 1
    assert not IdempotencyRecord.objects.exists()


def test_a_response_is_recorded_only_after_commit(site: Site, happened: list[str]) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        happened.append(f"view: {cached_states()}")
        transaction.on_commit(lambda: happened.append(f"hook: {cached_states()}"))
        return make_order(request)

    site.serve(idempotent(view))
    happened.clear()
    site.post()
    assert happened == [
        "lock", "BEGIN", "view: ['running']", "COMMIT", "hook: ['running']", "release",
    ]  # fmt: skip
    assert cached_states() == ["completed"]


def test_without_a_transaction_of_django_none_is_opened(
    site: Site, happened: list[str], autocommit: None
) -> None:
    site.serve(idempotent(lambda request, **_: HttpResponse()))
    happened.clear()
    site.post()
    assert happened == ["lock", "release"]


def test_a_view_that_raises_without_a_transaction_is_uncertain(
    site: Site, autocommit: None
) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        make_order(request)
        raise RuntimeError

    site.serve(idempotent(view))
    assert site.post().status_code == 500
    assert code(site.post()) == "idempotency-outcome-uncertain"
    assert orders() == 1


@pytest.mark.parametrize("error", [IntegrityError, OperationalError])
def test_a_commit_that_fails_is_uncertain(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    site.serve(idempotent(make_order))

    def fail() -> None:
        raise error

    monkeypatch.setattr(connection, "_commit", fail)
    assert site.post().status_code == 500
    monkeypatch.undo()
    assert code(site.post()) == "idempotency-outcome-uncertain"
    assert orders() == 0


def test_a_failure_between_two_commits_is_uncertain(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = SeparateRecorder(
        store_of(settings_of("default")),
        Claim(hashes=(RequestHashes("k", "f"),)),
        lambda response, **_: (ViewOutcome.COMPLETED, None),
        None,
    )
    hooks: list[Callable[[], None]] = []
    monkeypatch.setattr(transaction, "on_commit", lambda hook, using: hooks.append(hook))
    monkeypatch.setattr(transaction, "get_rollback", lambda using: False)
    recorder.begin(["one", "other"])
    recorder.finish(HttpResponse())
    hooks[0]()
    recorder.failed(IntegrityError(), lambda error: None)
    assert cached_states() == ["uncertain"]


def test_a_process_that_died_in_the_view_is_uncertain(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        make_order(request)
        raise KeyboardInterrupt

    site.serve(idempotent(view))
    with pytest.raises(KeyboardInterrupt):
        site.post()
    assert cached_states() == ["running"]
    assert [code(site.post()) for _ in range(2)] == ["idempotency-outcome-uncertain"] * 2
    assert cached_states() == ["uncertain"]


def test_while_a_request_runs_others_with_its_key_are_refused(site: Site, autocommit: None) -> None:
    answers: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        if not answers:
            answers.append(InThread(site.post).result)
            answers.append(InThread(lambda: site.post(data={"total": 2})).result)
        return HttpResponse()

    site.serve(idempotent(view))
    assert site.post().status_code == 200
    assert [answer.status_code for answer in answers] == [409, 422]
    assert code(answers[0]) == "idempotency-key-in-flight"


def test_a_late_view_that_was_doubted_still_completes_its_record(
    site: Site, autocommit: None
) -> None:
    answers: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        masters_forget()
        answers.append(InThread(site.post).result)
        return HttpResponse("late")

    site.serve(idempotent(view))
    assert site.post().content == b"late"
    assert code(answers[0]) == "idempotency-outcome-uncertain"
    assert site.post().content == b"late"


def test_a_doubted_view_that_completes_keeps_its_response(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view completes between the retry's look at the record and its mark."""
    store = store_of(settings_of("default"))
    claim = Claim(hashes=(RequestHashes("k", "f"),))
    store.begin(claim)
    cache: Any = caches["default"]
    real = cache.set

    def completes_first(key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(cache, "set", real)
        assert store.complete(claim, 201, StoredResponse(201, (), b"done"))
        real(key, value, *args, **kwargs)

    monkeypatch.setattr(cache, "set", completes_first)
    store.mark_uncertain("k", claim.attempt)
    found = store.find(claim)
    assert found is not None
    assert found.status.state == "completed"


def test_a_record_is_replaced_only_if_it_has_not_changed_since_it_expired(site: Site) -> None:
    store = store_of(settings_of("default"))
    old, newer, late = (Claim(hashes=(RequestHashes("k", "f"),)) for _ in range(3))
    store.begin(old)
    expired = store.find(old)
    store.delete(old)
    store.begin(newer)
    with pytest.raises(AlreadyRecorded):
        store.begin(late, instead_of=expired)


def test_a_lost_resource_lock_rolls_everything_back(
    site: Site, lose_locks: Callable[[], None]
) -> None:
    from redlock_django import lock_resource

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        lose_locks()
        return make_order(request)

    site.serve(idempotent(lock_resource("order:7")(view)))
    assert [site.post().status_code for _ in range(2)] == [503, 503]
    assert (orders(), cached_states()) == (0, [])


# A cache that evicts entries, or fails.


def test_a_request_whose_response_was_evicted_does_not_run_again(site: Site) -> None:
    site.serve(idempotent(make_order))
    site.post()
    cache: Any = caches["default"]
    (body,) = [name for name in cache._cache if name.endswith("response")]
    cache.delete(body.split(":", 2)[2])
    assert code(site.post()) == "idempotency-result-unavailable"
    assert orders() == 1


def test_an_evicted_record_of_a_running_view_is_written_again(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        caches["default"].clear()
        return make_order(request)

    site.serve(idempotent(view))
    assert site.post().status_code == 201
    assert site.post()["Idempotent-Replayed"] == "true"
    assert orders() == 1


class Failing(LocMemCache):
    """A cache whose methods named in `fails` raise, or fail silently."""

    fails: ClassVar[set[str]] = set()
    loudly = True

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__(name, params)

    def _fail(self, method: str) -> bool:
        if method in self.fails and self.loudly:
            raise ConnectionError("secret")
        return method in self.fails

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return False if self._fail("add") else super().add(*args, **kwargs)

    def get_many(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return {} if self._fail("get_many") else super().get_many(*args, **kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        if not self._fail("set"):
            super().set(*args, **kwargs)


@pytest.fixture
def failing(site: Site) -> type[Failing]:
    site.settings.CACHES = {"default": {"BACKEND": f"{__name__}.Failing"}}
    Failing.fails, Failing.loudly = set(), True
    return Failing


@pytest.mark.parametrize("method", ["add", "get_many"])
@pytest.mark.parametrize("loudly", [True, False])
def test_a_cache_that_fails_before_the_view(
    site: Site,
    failing: type[Failing],
    caplog: pytest.LogCaptureFixture,
    method: str,
    loudly: bool,
) -> None:
    if method == "get_many" and not loudly:
        failing.fails = {"add"}
    site.serve(idempotent(make_order))
    failing.fails, failing.loudly = failing.fails | {method}, loudly
    answer = site.post()
    assert (answer.status_code, code(answer)) == (503, "idempotency-unavailable")
    assert answer["Retry-After"] == "1"
    assert orders() == 0
    assert "secret" not in caplog.text


@pytest.mark.parametrize("loudly", [True, False])
def test_a_cache_that_fails_after_the_view(
    site: Site, failing: type[Failing], loudly: bool
) -> None:
    site.serve(idempotent(make_order))
    failing.fails, failing.loudly = {"set"}, loudly
    assert site.post().status_code == 201
    failing.fails = set()
    assert code(site.post()) == "idempotency-outcome-uncertain"
    assert orders() == 1


# Resolving.


@pytest.mark.parametrize(("applied", "then"), [(True, 409), (False, 201)])
def test_an_uncertain_record_is_resolved(site: Site, applied: bool, then: int) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        raise KeyboardInterrupt

    site.serve(idempotent(view))
    with pytest.raises(KeyboardInterrupt):
        site.post()
    site.post()
    store = store_of(settings_of("default"))
    assert isinstance(store, CacheStore)
    cache: Any = caches["default"]
    key_hash = next(name.split(":")[3] for name in cache._cache if "state" in name)
    assert store.resolve(key_hash, applied=applied)
    assert not store.resolve(key_hash, applied=applied)
    site.serve(idempotent(make_order))
    assert site.post().status_code == then


def test_a_view_that_sends_its_own_request_again_is_still_running(
    site: Site, autocommit: None
) -> None:
    """The thread that sends it holds the lock of the key, which must not count as its own."""
    inner = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        inner.append(site.post())
        return make_order(request)

    site.serve(idempotent(view))
    first, again = site.post(), site.post()
    assert [(answer.status_code, code(answer)) for answer in inner] == [
        (409, "idempotency-key-in-flight")
    ]
    assert (first.status_code, again["Idempotent-Replayed"], orders()) == (201, "true", 1)


async def test_an_async_view_that_sends_its_own_request_again_is_still_running(
    site: Site, autocommit: None
) -> None:
    inner, client = [], AsyncClient(raise_request_exception=False)
    client.cookies = site.client.cookies

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        inner.append(await client.post("/orders/", headers={"Idempotency-Key": KEY}))
        return HttpResponse("paid", status=201)

    site.serve(idempotent(view))
    first = await client.post("/orders/", headers={"Idempotency-Key": KEY})
    again = await client.post("/orders/", headers={"Idempotency-Key": KEY})
    assert [(answer.status_code, code(answer)) for answer in inner] == [
        (409, "idempotency-key-in-flight")
    ]
    assert (first.status_code, again["Idempotent-Replayed"]) == (201, "true")
