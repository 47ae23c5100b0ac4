"""The retention of records, `redlock_purge`, `resolve_idempotency`: output, statuses, effects."""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from getpass import getuser
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from redlock_django import idempotent
from redlock_django.exceptions import IdempotencyRefused
from redlock_django.idempotency import recorder
from redlock_django.idempotency.key import lock_name
from redlock_django.idempotency.records import RecordStore, store_of
from redlock_django.idempotency.refusals import UNAVAILABLE
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.services import locks
from redlock_django.management.commands import redlock_purge
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from tests.idempotency.conftest import KEY, Site, make_order, orders, record
from tests.operate.commands import THREE_IN_MEMORY, run
from tests.operate.sites import DATABASE

if TYPE_CHECKING:
    from pytest_django import Settings


pytestmark = pytest.mark.django_db(transaction=True)
PURGE, RESOLVE = "redlock_purge", "resolve_idempotency"


def make(state: str, days: float | None = None, key_hash: str = "") -> IdempotencyRecord:
    """Create a record that expired this many days ago."""
    return IdempotencyRecord.objects.create(
        key_hash=key_hash or f"{IdempotencyRecord.objects.count() + 1:064x}",
        attempt="a" * 32,
        state=state,
        method="POST",
        path="/orders/",
        expires_at=None if days is None else timezone.now() - timedelta(days=days),
        body=b"secret",
    )


def make_old_ones() -> None:
    for days in (-1, 1, 2, 31, 32, 33):
        make("completed", days)
    make("tombstone", 3)
    make("running")
    make("uncertain")


def test_old_records_are_purged_batch_by_batch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": THREE_IN_MEMORY}
    monkeypatch.setattr(redlock_purge, "BATCH", 2)
    make_old_ones()
    assert run(PURGE) == (0, "records: deleted 3, emptied 2\n", "")
    states = IdempotencyRecord.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["completed", *["tombstone"] * 3, "running", "uncertain"]
    left = IdempotencyRecord.objects.filter(state="tombstone", path="/orders/")
    assert [bytes(row.body) for row in left.order_by("pk")][:2] == [b"", b""]
    assert run(PURGE).out == "records: deleted 0\n"


def test_an_interrupted_purge_keeps_the_batches_that_are_done(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}
    monkeypatch.setattr(redlock_purge, "BATCH", 2)
    make_old_ones()
    real = RecordStore.purge

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        yield next(real(*args, **kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordStore, "purge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(PURGE)
    assert IdempotencyRecord.objects.count() == 7


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A user at a terminal who does something and then answers."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def answers(answer: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        def read(prompt: str = "") -> str:
            assert prompt == ""  # it would be written to stdout
            meanwhile()
            return answer

        monkeypatch.setattr(builtins, "input", read)

    return answers


def interrupt(site: Site) -> str:
    """Create the record of a request whose outcome is not known, and return its hash."""
    site.serve(idempotent(make_order))
    site.post()
    IdempotencyRecord.objects.update(state="uncertain", status=None, expires_at=None)
    return record().key_hash


def test_without_a_verdict_resolve_shows_unsettled_records_and_changes_nothing(site: Site) -> None:
    nothing = run(RESOLVE)
    assert (nothing.status, nothing.out, nothing.said) == (0, "", "No request is unresolved.\n")
    key_hash = interrupt(site)
    running, dead = make("running"), make("running")
    make("completed")
    with held_elsewhere(lock_name(running.key_hash)):
        ran = run(RESOLVE)
    assert ran.status == 0
    heads, *rows = (re.split(" {2,}", line) for line in ran.out.splitlines())
    assert heads == ["KEY", "STATE", "METHOD", "PATH", "USER", "SINCE"]
    assert {key: state for key, state, *_ in rows} == {
        key_hash: "uncertain",
        running.key_hash: "in flight",
        dead.key_hash: "interrupted",
    }
    assert KEY not in ran.out
    one = run(RESOLVE, key_hash[:8]).out.splitlines()
    assert len(one) == 2
    assert one[1].split()[:4] == [key_hash, "uncertain", "POST", "/orders/"]
    assert run(RESOLVE, "0123456789").status == 1


@pytest.mark.parametrize(
    ("verdict", "then", "happened"), [("--applied", 409, 1), ("--not-applied", 201, 2)]
)
def test_a_person_is_shown_the_request_and_asked(
    site: Site,
    person: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
    then: int,
    happened: int,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web\n1")
    key_hash = interrupt(site)
    person("no")
    declined = run(RESOLVE, verdict, key_hash[:8])
    assert (declined.status, f"{key_hash}: declined" in declined.said) == (1, True)
    assert "POST /orders/, user " in declined.said
    assert record().state == "uncertain"
    person("yes")
    with caplog.at_level(logging.WARNING, "redlock_django"):
        ran = run(RESOLVE, verdict, key_hash[:8])
    assert (ran.status, f"{key_hash}: resolved" in ran.said) == (0, True)
    [line] = [text for text in caplog.messages if "was resolved by" in text]
    assert rf"{getuser()}@web\n1: " in line
    assert site.post().status_code == then
    assert orders() == happened
    assert run(RESOLVE, verdict, key_hash, "--noinput").status == 1


def test_a_retry_that_ran_while_the_person_thought_is_left_alone(
    site: Site, person: Callable[..., None]
) -> None:
    key_hash = interrupt(site)

    def free_and_interrupt_again() -> None:
        IdempotencyRecord.objects.all().delete()
        interrupt(site)

    person("yes", meanwhile=free_and_interrupt_again)
    ran = run(RESOLVE, "--not-applied", key_hash)
    assert (ran.status, f"{key_hash}: settled" in ran.said) == (1, True)
    assert record().state == "uncertain"


def test_a_running_record_is_resolved_only_if_its_lock_is_free(site: Site) -> None:
    row = make("running")
    command = (RESOLVE, "--not-applied", row.key_hash, "--noinput")
    with held_elsewhere(lock_name(row.key_hash)):
        assert run(*command).status == 1
    backend: Any = locks["default"].backend
    backend.down = [True] * len(backend.masters)
    assert run(*command).status == 3
    assert "or interrupted" in run(RESOLVE).out
    backend.down = [False] * len(backend.masters)
    assert record().state == "running"
    assert run(*command).status == 0
    assert not IdempotencyRecord.objects.exists()


def test_of_two_that_begin_alike_nothing_is_done(site: Site) -> None:
    for end in "ab":
        make("uncertain", key_hash="12345678" * 7 + "0000000" + end)
    ran = run(RESOLVE, "--applied", "12345678", "--noinput")
    assert (ran.status, ran.out) == (2, "")
    assert "2 records begin with 12345678" in ran.said
    assert IdempotencyRecord.objects.filter(state="uncertain").count() == 2
    unknown = run(RESOLVE, "--applied", "ffffffff", "--noinput")
    assert (unknown.status, "begins with ffffffff" in unknown.said) == (1, True)


def test_wrong_arguments(site: Site) -> None:
    key_hash = interrupt(site)
    for arguments in (
        ["--applied", key_hash],  # stdin is not a terminal
        ["--applied", "--noinput"],
        ["--applied", "--not-applied", key_hash, "--noinput"],
        ["--applied", "--noinput", "1234567"],
        ["--applied", "--noinput", "_" * 8],
        ["--using", "nope"],
    ):
        assert run(RESOLVE, *arguments).status != 0
    assert record().state == "uncertain"


def test_a_database_that_fails_is_a_status_and_no_traceback(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise OperationalError("no such table\x1b[2J")
        yield

    monkeypatch.setattr(RecordStore, "purge", fail)
    ran = run(PURGE)
    assert (ran.status, ran.out) == (1, "")
    assert ran.said == r"records: no such table\x1b[2J"


def test_a_store_that_is_away_is_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any) -> Any:
        raise IdempotencyRefused(UNAVAILABLE)

    monkeypatch.setattr(RecordStore, "unresolved", away)
    assert run(RESOLVE).status == 1
    assert run(RESOLVE, "--applied", "12345678", "--noinput").status == 1


Later = Callable[[timedelta], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Move the expiry of all records into the past."""
    now = timezone.now

    def pass_by(time: timedelta) -> None:
        monkeypatch.setattr(timezone, "now", lambda: now() + time)

    return pass_by


def code(answer: Any) -> str:
    return str(answer.json()["code"])


def test_an_uncertain_record_does_not_expire(site: Site, later: Later, plain: None) -> None:
    async def killed(request: Any, **_: Any) -> None:
        raise KeyboardInterrupt

    site.serve(idempotent(killed))
    with pytest.raises(KeyboardInterrupt):
        site.post()
    site.post()
    later(timedelta(days=10))
    assert code(site.post()) == "idempotency-outcome-uncertain"


def purge(batch: int = 1000) -> list[int]:
    return [rows for _, rows in store_of(settings_of("default")).purge(batch)]


def test_purging_empties_first_and_deletes_later(site: Site, later: Later) -> None:
    site.serve(idempotent(make_order))
    for key in range(5):
        site.post(str(key))
    IdempotencyRecord.objects.filter(pk=record_of(0)).update(state="uncertain", expires_at=None)
    assert purge() == []
    later(timedelta(days=2))
    assert purge(batch=3) == [3, 1]
    assert purge() == []
    emptied = IdempotencyRecord.objects.filter(state="tombstone")
    assert {(bytes(row.body), row.status) for row in emptied} == {(b"", 201)}
    assert code(site.post("1")) == "idempotency-key-expired"
    assert IdempotencyRecord.objects.filter(state="uncertain").exists()
    later(timedelta(days=32))
    assert purge(batch=3) == [3, 1, 1]
    assert not IdempotencyRecord.objects.exists()


def test_purging_reads_by_index(site: Site) -> None:
    store = store_of(settings_of("default"))
    expired, unresolved, to_empty = [rows.order_by(by) for _, rows, by in store.purgeable()]
    assert "redlock_state_expires" in to_empty.explain()
    assert "redlock_state_expires" in unresolved.explain()
    assert "expires_at" in expired.explain()


def record_of(place: int) -> int:
    return IdempotencyRecord.objects.order_by("pk").values_list("pk", flat=True)[place]


@pytest.mark.attack
def test_expired_responses_are_deleted_without_a_purge(
    site: Site, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_EVERY", 1)
    site.serve(idempotent(make_order))
    site.post("old")
    later(timedelta(days=2))
    site.post("new")
    old, new = IdempotencyRecord.objects.order_by("pk")
    assert (old.state, bytes(old.body), old.headers) == ("tombstone", b"", [])
    assert new.state == "completed"
    assert code(site.post("old")) == "idempotency-key-expired"
