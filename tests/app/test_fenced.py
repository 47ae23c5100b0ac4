"""Fenced rows: the newest holder can write, a late holder cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, models, transaction
from django.test.utils import isolate_apps
from pytest_django import Settings

from redlock_django import LockLost, NotHeld, lock, locks, resume_lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.fenced import FencedModel, FencedQuerySet
from tests.app.conftest import MEMORY, Configure
from tests.pages import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.locking.lock import Lock

pytestmark = pytest.mark.django_db(transaction=True)


class Account(FencedModel):
    owner = models.CharField(max_length=20)
    balance = models.IntegerField(default=100)

    class Meta:
        app_label = "fenced"


class RichAccount(Account):
    limit = models.IntegerField(default=0)

    class Meta:
        app_label = "fenced"


class Transfer(FencedModel):
    account = models.ForeignKey(Account, on_delete=models.CASCADE)

    class Meta:
        app_label = "fenced"


@pytest.fixture(autouse=True)
def _tables(memory: Configure) -> Iterator[None]:
    made = [Account, RichAccount, Transfer]
    with connection.schema_editor() as editor:
        for model in made:
            editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in reversed(made):
            editor.delete_model(model)


@pytest.fixture
def account() -> Account:
    return Account.objects.create(owner="Ann")


def rows(account: Account) -> FencedQuerySet[Account]:
    found = Account.objects.filter(pk=account.pk)
    assert isinstance(found, FencedQuerySet)
    return found


def balance(account: Account) -> int:
    return Account.objects.get(pk=account.pk).balance


@pytest.fixture
def late(no_renewals: None) -> Lock:
    """A holder whose lease has expired unnoticed, so that a newer holder is possible."""
    held = lock("account:1").acquire()
    MemoryBackend.advance(60)
    return held


def test_two_primaries_at_once_may_grant_fences_out_of_order(
    account: Account, settings: Settings
) -> None:
    """docs/how-to/one-redis.md: a row follows the order of the fences, not that of the grants."""
    settings.REDLOCK = {"default": settings.REDLOCK["default"], "promoted": {"BACKEND": MEMORY}}
    promoted = locks["promoted"].backend
    assert isinstance(promoted, MemoryBackend)
    time = promoted.time
    promoted.time = lambda: time() - 500_000  # the clocks of its clients and its own: 0.5 s behind
    with lock("account:1") as earlier, lock("account:1", using="promoted") as later:
        assert later.fence < earlier.fence
        assert rows(account).fenced(later).update(balance=50) == 1
        assert rows(account).fenced(earlier).update(balance=70) == 1
        with pytest.raises(LockLost):
            rows(account).fenced(later).update(balance=60)
    assert balance(account) == 70


@isolate_apps("testproject.shop")
def test_the_example_of_the_page_runs() -> None:
    """docs/how-to/fencing.md, in the models.py of an app."""
    [example] = Page("docs/how-to/fencing.md").blocks()
    names: dict[str, Any] = {"__name__": "testproject.shop.models"}
    exec(example, names)
    model = names["Account"]
    with connection.schema_editor() as editor:
        editor.create_model(model)
    try:
        model.objects.create(pk=7, balance=100)
        names["withdraw"](7, 30)
        assert model.objects.get(pk=7).balance == 70
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(model)


def test_a_write_carries_the_fence_and_its_owner(account: Account) -> None:
    with lock("account:1") as held:
        assert rows(account).fenced(held).update(balance=70) == 1
        fence, owner = held.fence, held.fingerprint
    account.refresh_from_db()
    assert (account.balance, account.fence, account.fence_owner) == (70, fence, owner)
    assert owner not in str(account.fence)


def test_a_late_holder_is_refused(account: Account, late: Lock) -> None:
    mine = rows(account).fenced(late)
    mine.update(balance=90)
    with lock("account:1") as held:
        found = rows(account).fenced(held).claim().get()
        with pytest.raises(
            LockLost, match=r"account:1: a newer holder .* fenced\.Account"
        ) as caught:
            mine.update(balance=0)
        assert caught.value.resource == "account:1"
        with pytest.raises(LockLost):
            mine.claim()
        rows(account).fenced(held).update(balance=found.balance - 30)
    with pytest.raises(LockLost):
        mine.update(balance=0)
    assert balance(account) == 60


def test_a_late_holder_without_a_successor_may_still_write(account: Account, late: Lock) -> None:
    assert rows(account).fenced(late).update(balance=70) == 1


def test_the_first_of_two_writers_with_one_fence_stays(account: Account) -> None:
    with lock("account:1") as held:
        rows(account).update(fence=held.fence, fence_owner="another client")
        with pytest.raises(LockLost):
            rows(account).fenced(held).update(balance=0)
        rows(account).update(fence_owner=held.fingerprint)
        assert rows(account).fenced(held).update(balance=1) == 1


def test_an_update_changes_all_rows_or_none(account: Account, late: Lock) -> None:
    other = Account.objects.create(owner="Bob")
    both = Account.objects.filter(pk__in=[account.pk, other.pk])
    with lock("account:1") as held:
        rows(other).fenced(held).claim()
    with transaction.atomic():
        with pytest.raises(LockLost):
            both.fenced(late).update(balance=0)
        assert Account.objects.count() == 2  # the transaction can still be used
    assert [balance(account), balance(other)] == [100, 100]
    with lock("account:1") as held:
        assert both.fenced(held).update(balance=5) == 2


def test_no_rows_do_not_raise_lock_lost(account: Account) -> None:
    with lock("account:1") as held:
        assert Account.objects.filter(pk=-1).fenced(held).update(balance=0) == 0
        assert rows(account).filter(owner="Bob").fenced(held).update(balance=0) == 0


def test_an_update_may_change_the_field_of_its_filter(account: Account) -> None:
    with lock("account:1") as held:
        assert rows(account).filter(owner="Ann").fenced(held).update(owner="Eve") == 1


def test_an_update_names_one_of_several_resources(account: Account) -> None:
    with lock("account:1", "account:2") as held:
        with pytest.raises(ValueError, match="several resources"):
            rows(account).fenced(held)
        rows(account).fenced(held, resource="account:2").claim()
        account.refresh_from_db()
        assert account.fence == held.fences["account:2"]


def test_an_update_needs_a_held_lock(account: Account) -> None:
    with pytest.raises(NotHeld):
        rows(account).fenced(lock("account:1"))


def test_joins_are_refused(account: Account) -> None:
    with lock("account:1") as held:
        with pytest.raises(ValueError, match="filter by its primary key"):
            Transfer.objects.filter(account__owner="Ann").fenced(held)
        with pytest.raises(ValueError, match="own table"):
            RichAccount.objects.filter(pk=account.pk).fenced(held)
        picked = Account.objects.filter(owner="Ann").values("pk")
        assert Account.objects.filter(pk__in=picked).fenced(held).update(balance=1) == 1


# Instances.


def test_save_with_a_lock(account: Account, late: Lock) -> None:
    stale = Account.objects.get(pk=account.pk)
    with lock("account:1") as held:
        account.balance = 70
        account.save(held=held)
        assert (account.fence, account.fence_owner) == (held.fence, held.fingerprint)
    stale.balance = 0
    with pytest.raises(LockLost):
        stale.save(held=late)
    with pytest.raises(LockLost):
        stale.save(held=late, update_fields=["balance"])
    assert balance(account) == 70
    assert stale.fence == 0


def test_save_of_a_new_row_and_of_a_row_that_was_not_read(late: Lock) -> None:
    with lock("account:1") as held:
        account = Account(pk=5, owner="Ann")
        account.save(held=held)
        stored = Account.objects.get(pk=5)
        assert (stored.fence, stored.fence_owner) == (held.fence, held.fingerprint)
    with pytest.raises(LockLost):
        Account(pk=5, owner="Eve").save(held=late)
    assert Account.objects.get(pk=5).owner == "Ann"


def test_save_of_a_model_that_inherits_the_fence(late: Lock) -> None:
    rich = RichAccount.objects.create(owner="Ann")
    with lock("account:1") as held:
        rich.limit = 9
        rich.save(held=held)
        fence = held.fence
    rich.limit = 0
    with pytest.raises(LockLost):
        rich.save(held=late)
    stored = RichAccount.objects.get()
    assert (stored.limit, stored.fence) == (9, fence)


def test_a_plain_save_does_not_lower_the_fence(account: Account) -> None:
    with lock("account:1") as held:
        rows(account).fenced(held).update(balance=70)
        fence = held.fence
    assert account.fence == 0  # the value from the read
    account.balance = 1
    account.save()
    stored = Account.objects.get(pk=account.pk)
    assert (stored.balance, stored.fence) == (1, fence)


async def test_coroutines(account: Account) -> None:
    async with lock("account:1") as held:
        mine = rows(account).fenced(held)
        found = await (await mine.aclaim()).aget()
        assert await mine.aupdate(balance=found.balance - 30) == 1
        found.balance = 10
        await found.asave(held=held)
    await account.arefresh_from_db()
    assert account.balance == 10


def test_migrations_contain_plain_columns_only() -> None:
    def path(name: str) -> Any:
        return Account._meta.get_field(name).deconstruct()[1]  # type: ignore[union-attr]

    assert path("fence") == "django.db.models.BigIntegerField"
    assert path("fence_owner") == "django.db.models.CharField"


@pytest.mark.attack
@pytest.mark.parametrize("model", [Account, RichAccount])
def test_a_late_save_does_not_bring_back_a_deleted_row(late: Lock, model: type[Account]) -> None:
    stale = model.objects.create(owner="Ann")
    with lock("account:1"):
        model.objects.all().delete()
    stale.balance = 7
    with pytest.raises(LockLost, match="has been deleted"):
        stale.save(held=late)
    assert not Account.objects.exists()


def test_a_new_row_is_saved_under_the_lock() -> None:
    with lock("account:1") as held:
        Account(owner="Ann").save(held=held)
        Account(pk=77, owner="Bob").save(held=held, force_insert=True)
        copy = Account.objects.get(pk=77)
        copy.pk = None
        copy.save(held=held)
    assert Account.objects.count() == 3


def test_a_taker_writes_to_the_rows_of_its_giver_which_does_not_any_more(account: Account) -> None:
    giver = lock("account:1").acquire()
    late = rows(account).fenced(giver)
    assert late.update(balance=90) == 1
    with resume_lock(giver.transfer()) as taken:
        assert rows(account).fenced(taken).update(balance=80) == 1
        with pytest.raises(LockLost, match="a newer holder"):
            late.update(balance=10)
        account.balance = 70
        account.save(held=taken)
        last = taken.transfer()
    with resume_lock(last) as taken:
        assert rows(account).fenced(taken).update(balance=60) == 1
    assert balance(account) == 60
