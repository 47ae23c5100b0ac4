"""Locks that are transactions, on PostgreSQL and MariaDB: promises, refusals, and locked views."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path
from pytest_django import Settings

from redlock_django import ResourceLocked, idempotent, transaction_lock
from redlock_django.exceptions import BadName, InvalidRedlock
from redlock_django.locking.transaction_lock import advisory_key
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.aliases import database_alias, new_database
from tests.conftest import installed
from tests.postgres import local_pgbouncer
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.postgres]
NAME = "transactions"  # of the database


@pytest.fixture(scope="module")
def databases(postgres: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """Add the alias "pg", a database of its own with the table of orders."""
    with (
        new_database(postgres, NAME) as entry,
        django_db_blocker.unblock(),
        database_alias("pg", entry, tables=[Order, IdempotencyRecord]),
    ):
        yield


@pytest.fixture
def pg(databases: None) -> Iterator[str]:
    delete_orders("pg")
    yield "pg"
    connections["pg"].close()


def delete_orders(alias: str) -> None:
    with connections[alias].cursor() as cursor:  # without the tables that refer to this one
        cursor.execute("DELETE FROM shop_order")


@pytest.fixture
def holder(pg: str, postgres: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Return another client of the database, inside a transaction."""
    server = {name: postgres[name.upper()] for name in ("host", "port", "user")}
    with closing(psycopg.connect(**server, dbname=NAME)) as client:
        yield client


@pytest.fixture
def pgbouncer(pg: str, postgres: dict[str, Any]) -> Iterator[None]:
    """Add "pooled" and "by_statement", the same database behind PgBouncer in these modes."""
    address = f"host=127.0.0.1 port={postgres['PORT']} user=postgres"
    by_statement = f"by_statement = {address} dbname={NAME} pool_mode=statement\n"
    with installed(local_pgbouncer(postgres["PORT"], by_statement)) as pooler:
        entry = {**postgres, "PORT": pooler.port}
        with (
            database_alias("pooled", {**entry, "NAME": NAME}),
            database_alias("by_statement", {**entry, "NAME": "by_statement"}),
        ):
            yield


@pytest.fixture(params=["pg", pytest.param("maria", id="mariadb")])
def alias(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[str]:
    """Return a database with the table of orders."""
    if request.param == "pg":
        yield request.getfixturevalue("pg")
        return
    entry = request.getfixturevalue("mysql")
    with django_db_blocker.unblock(), database_alias("maria", entry, tables=[Order]):
        yield "maria"


def hold(holder: psycopg.Connection, resource: str = "order:1") -> None:
    holder.execute("SELECT pg_advisory_xact_lock(%s)", [advisory_key(resource)])


def is_free(holder: psycopg.Connection, resource: str = "order:1") -> bool:
    row = holder.execute("SELECT pg_try_advisory_xact_lock(%s)", [advisory_key(resource)])
    (free,) = row.fetchone() or ()
    holder.rollback()
    return bool(free)


Holder = Callable[..., Any]


def orders() -> int:
    return Order.objects.using("pg").count()


def order(number: str = "A-1", using: str = "pg") -> Order:
    return Order.objects.using(using).create(number=number, total=1)


@contextmanager
def elsewhere(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run a function in another thread with connections of its own; its result, at the end."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            result.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        thread.join(90)


def refused(
    *resources: Any, error: type[Exception] = ResourceLocked, match: str = ".", **options: Any
) -> Any:
    """Return the error with which a lock is refused: one on names, of "pg" by default."""
    options.setdefault("database", None if isinstance(resources[0], Order) else "pg")
    with pytest.raises(error, match=match) as caught, transaction_lock(*resources, **options):
        pytest.fail("it is held")
    return caught.value


def waiters(holder: psycopg.Connection) -> int:
    rows = holder.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert rows is not None
    return int(rows[0])


# The lock.


def test_a_lock_is_held_until_commit(holder: psycopg.Connection) -> None:
    with transaction_lock("order:1", database="pg"):
        order()
        assert not is_free(holder)
        assert is_free(holder, "order:2")
    assert is_free(holder)
    assert orders() == 1


def test_a_lock_may_be_entered_again_inside_itself(holder: psycopg.Connection) -> None:
    block = transaction_lock("order:1", database="pg", wait=86_400)
    for _ in range(2):
        with block:
            with block:
                order()
            assert not is_free(holder)
        assert is_free(holder)
        assert orders() == 1
        delete_orders("pg")


def test_a_lock_in_an_outer_transaction_is_held_until_the_outer_commit(
    holder: psycopg.Connection,
) -> None:
    with transaction.atomic("pg"):
        with transaction_lock("order:1", database="pg"):
            order()
        assert not is_free(holder)
    assert is_free(holder)


def test_an_exception_rolls_back_the_writes_under_the_lock(holder: psycopg.Connection) -> None:
    with transaction.atomic("pg"):
        with suppress(ZeroDivisionError), transaction_lock("order:1", database="pg"):
            order()
            raise ZeroDivisionError
        assert is_free(holder)
        assert orders() == 0


def test_a_savepoint_that_is_rolled_back_inside_does_not_end_the_lock(
    holder: psycopg.Connection,
) -> None:
    with transaction_lock("order:1", database="pg"):
        with suppress(ZeroDivisionError), transaction.atomic("pg"):
            raise ZeroDivisionError
        assert not is_free(holder)


def test_a_lock_of_another_transaction_is_refused(holder: psycopg.Connection) -> None:
    hold(holder)
    error = refused("order:1", match="order:1: another transaction of 'pg'")
    assert (error.resource, error.waited, error.retry_after) == ("order:1", 0, None)


def test_a_refusal_leaves_the_outer_transaction_as_it_was(holder: psycopg.Connection) -> None:
    hold(holder)
    with transaction.atomic("pg"):
        order()
        for wait in (0, 0.01):
            refused("order:1", wait=wait)
    assert orders() == 1


def test_a_waiter_sees_the_commit_of_its_predecessor(holder: psycopg.Connection) -> None:
    hold(holder)
    holder.execute("INSERT INTO shop_order (number, total, state) VALUES ('A-1', 1, 'open')")

    def count() -> int:
        with transaction_lock("order:1", database="pg", wait=60):
            return orders()

    with elsewhere(count) as seen:
        until(lambda: waiters(holder) or seen, "it waits")
        holder.commit()
    assert seen == [1]


@pytest.mark.attack
def test_waiting_is_limited_and_the_limit_ends_with_the_wait(holder: psycopg.Connection) -> None:
    hold(holder)
    assert refused("order:1", wait=0.05).waited > 0
    with connections["pg"].cursor() as cursor, transaction.atomic("pg"):
        cursor.execute("SET LOCAL lock_timeout = '7s'")

        def locked() -> str:
            with transaction.atomic("pg"), connections["pg"].cursor() as own:
                own.execute("SET LOCAL lock_timeout = '7s'")
                with transaction_lock("order:1", database="pg", wait=60):
                    own.execute("SHOW lock_timeout")
                    return str(own.fetchone()[0])

        with elsewhere(locked) as seen:
            until(lambda: waiters(holder) or seen, "it waits")
            holder.commit()
    assert seen == ["7s"]


def test_several_resources_are_locked_in_one_order(holder: psycopg.Connection) -> None:
    hold(holder, "b:2")
    refused("a:1", "b:2", match="a:1, b:2")
    assert is_free(holder, "a:1")
    holder.rollback()
    asked: list[list[int]] = []

    def note(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        asked.extend([params] if params else [])
        return execute(sql, params, *rest)

    with connections["pg"].execute_wrapper(note):
        for names in (("a:1", "b:2", "c:3"), ("c:3", "b:2", "a:1")):
            with transaction_lock(*names, database="pg"):
                pass
    assert len(asked) == 6
    assert asked[:3] == asked[3:]


def test_a_deadlock_with_other_locks_is_a_refusal(holder: psycopg.Connection) -> None:
    holder.execute("SET deadlock_timeout = '60s'")
    hold(holder, "b:2")

    def crossed() -> None:
        with (
            transaction_lock("a:1", database="pg"),
            connections["pg"].cursor() as cursor,
        ):
            cursor.execute("SET LOCAL deadlock_timeout = '1ms'")
            taken.set()
            until(lambda: waiters(other) == 1, "the other waits")
            with transaction_lock("b:2", database="pg", wait=60):
                pytest.fail("two holders")

    taken = threading.Event()
    with psycopg.connect(holder.info.dsn, autocommit=True) as other, elsewhere(crossed) as end:
        assert taken.wait(60)
        hold(holder, "a:1")
        holder.commit()
    assert isinstance(end[0], ResourceLocked)


def test_a_killed_client_frees_the_lock_at_once_and_commits_nothing(
    holder: psycopg.Connection,
) -> None:
    def kill_this_client() -> None:
        with connections["pg"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            holder.execute("SELECT pg_terminate_backend(%s, 5000)", cursor.fetchone())

    lock = transaction_lock("order:1", database="pg")
    lock.__enter__()
    order()
    kill_this_client()
    assert is_free(holder)
    with pytest.raises(OperationalError):
        lock.__exit__(None, None, None)  # COMMIT
    connections["pg"].close()
    assert orders() == 0


@pytest.mark.attack
def test_two_names_with_one_hash_only_exclude_each_other(
    holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlock_django.locking.transaction_lock.advisory_key", lambda name: 7)
    with transaction_lock("a:1", "b:2", database="pg"):  # one transaction may have both
        holder.execute("SELECT 1")
        with elsewhere(lambda: transaction_lock("c:3", database="pg").__enter__()) as end:
            pass
    assert isinstance(end[0], ResourceLocked)


def test_the_id_depends_on_the_whole_name() -> None:
    keys = {advisory_key(name) for name in ("order:1", "order:2", "order:1:2", "0", "1")}
    assert len(keys) == 5
    assert advisory_key("order:1") == -2 or all(-(2**63) <= key < 2**63 for key in keys)


# Rows.


def waits_for_row(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT '', count(*) FROM pg_locks WHERE NOT granted"
            if alias == "pg"
            else "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
        )
        return bool(int(cursor.fetchone()[1]))


def lock_timeout(alias: str) -> Any:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SHOW lock_timeout" if alias == "pg" else "SELECT @@innodb_lock_wait_timeout"
        )
        return cursor.fetchone()[0]


def test_an_instance_is_locked_by_its_row_and_reloaded(alias: str) -> None:
    old, again = order(using=alias), Order.objects.using(alias).get()
    Order.objects.using(alias).update(total=5)

    def work() -> tuple[int, bool]:
        before = lock_timeout(alias)
        refused(again, match=rf"shop.Order {old.pk}: another transaction")
        with transaction_lock(again, wait=60):
            return again.total, lock_timeout(alias) == before

    with ExitStack() as stack, transaction_lock(old):
        assert old.total == 5
        old.total += 1
        old.save()
        seen = stack.enter_context(elsewhere(work))
        until(lambda: waits_for_row(alias) or seen, "it waits")
    assert seen == [(6, True)]


def test_a_row_that_is_deleted_is_no_lock(alias: str) -> None:
    gone = order(using=alias)
    delete_orders(alias)
    for wait in (0, 1):
        refused(gone, error=Order.DoesNotExist, wait=wait)


# What it refuses.


@pytest.mark.attack
def test_a_snapshot_is_refused(pg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction.atomic("pg"):
        with connections["pg"].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        refused("order:1", error=InvalidRedlock, match=r"'pg' is repeatable read.*READ COMMITTED")
    connections["pg"].close()
    level = {"isolation_level": IsolationLevel.SERIALIZABLE}
    monkeypatch.setitem(connections["pg"].settings_dict, "OPTIONS", level)
    refused("order:1", error=InvalidRedlock, match="'pg' is serializable")


def test_a_snapshot_of_mariadb_is_refused(mysql: dict[str, Any], django_db_blocker: Any) -> None:
    level = {"OPTIONS": {"isolation_level": "repeatable read"}}
    with django_db_blocker.unblock(), database_alias("maria", {**mysql, **level}):
        row = Order(pk=1)
        row._state.adding, row._state.db = False, "maria"
        refused(row, error=InvalidRedlock, match="is REPEATABLE-READ")
        with pytest.raises(InvalidRedlock, match=r"no lock on a name .* transaction_lock.instance"):
            transaction_lock("order:1", database="maria")


@pytest.mark.attack
def test_a_transaction_of_another_database_around_a_lock_is_refused(
    pg: str, postgres: dict[str, Any]
) -> None:
    with database_alias("other", postgres), transaction.atomic("other"):
        refused("order:1", error=InvalidRedlock, match=r"'other' is open around .* on 'pg'")


def test_locks_behind_pgbouncer_exclude_each_other(
    pgbouncer: None, holder: psycopg.Connection
) -> None:
    with transaction_lock("order:1", database="pooled"):
        assert not is_free(holder)
    hold(holder)
    refused("order:1", database="pooled", wait=0.05)
    why = "transaction blocks not allowed in statement pooling"
    refused("order:2", database="by_statement", error=DatabaseError, match=why)


@pytest.mark.attack
def test_a_replica_is_refused(pg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_replica(execute: Any, sql: str, *rest: Any) -> Any:
        return execute(sql.replace("pg_is_in_recovery()", "true"), *rest)

    with connections["pg"].execute_wrapper(as_replica):
        refused("order:1", error=InvalidRedlock, match=r"is a replica.*alias of the primary")


async def test_a_running_loop_is_refused(pg: str) -> None:
    refused("order:1", error=SynchronousOnlyOperation, match="sync_to_async")

    def work() -> int:
        with transaction_lock("order:1", database="pg"):
            order()
        connections["pg"].close()
        return 1

    assert await sync_to_async(work)() == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), InvalidRedlock, "one or several names, or one model instance"),
        (("order:1", Order(pk=1)), InvalidRedlock, "or one model instance"),
        ((Order(),), InvalidRedlock, "this shop.Order has not been saved"),
        (("order 1",), BadName, "space U+0020"),
        ((7,), BadName, "must be str, got int"),
    ],
)
def test_bad_resources_are_refused(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        transaction_lock(*arguments)
    assert message in str(caught.value)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="wait must be at least 0 s"):
        transaction_lock("order:1", wait=-1)
    with pytest.raises(InvalidRedlock, match="'nowhere' is not in DATABASES; there is: 'default'"):
        transaction_lock("order:1", database="nowhere")


def test_a_failed_transaction_is_refused_as_django_does(pg: str) -> None:
    with transaction.atomic("pg"):
        transaction.set_rollback(True, using="pg")
        refused("order:1", error=DatabaseError, match="end of the 'atomic' block")


# Views that do their work under `transaction_lock()`.

MEMORY = "redlock_django.backends.memory.MemoryBackend"
unowned = idempotent(anonymous_scope=lambda request, **_: "all")
seen: dict[str, Any] = {}


def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Create an order; note whether another client could lock it meanwhile."""
    with transaction_lock(f"order:{pk}", database="pg"):
        Order.objects.using("pg").create(number=str(pk), total=1)
        seen["free"] = is_free(seen["holder"], f"order:{pk}")
    return HttpResponse("done")


urlpatterns = [path("pay/<int:pk>/", pay), path("once/<int:pk>/", unowned(pay))]


@pytest.fixture
def client(pg: str, holder: psycopg.Connection, settings: Settings) -> Iterator[Client]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["redlock_django.middleware.LockMiddleware"]
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": {"DATABASE": "pg"}}}
    connections.settings["default"]["ATOMIC_REQUESTS"] = False
    IdempotencyRecord.objects.using("pg").all().delete()
    seen.clear()
    seen["holder"] = holder
    clear_url_caches()
    yield Client()
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    clear_url_caches()


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets ATOMIC_REQUESTS of "pg"."""

    def put(value: bool = True, alias: str = "pg") -> None:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", value)

    return put


@pytest.mark.parametrize("is_atomic", [False, True], ids=["plain", "atomic"])
def test_a_view_is_refused_while_locked_and_runs_after(
    client: Client, holder: psycopg.Connection, atomic: Callable[..., None], is_atomic: bool
) -> None:
    atomic(is_atomic)
    hold(holder, "order:7")
    answer = client.post("/pay/7/")
    assert (answer.status_code, answer.json()["code"]) == (423, "resource-locked")
    # As for lock() in a view's own code, it is not known what the view has done before.
    assert answer.json()["retryable"] is is_atomic
    assert (orders(), "free" in seen) == (0, False)
    holder.rollback()
    assert client.post("/pay/7/").status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")
    assert orders() == 1


def test_a_view_that_fails_changes_nothing_and_frees_the_lock(
    client: Client, holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(seen, "holder", None)  # the view fails after it has created the order
    with pytest.raises(AttributeError):
        client.post("/pay/7/")
    assert orders() == 0
    assert is_free(holder, "order:7")


def test_a_record_is_committed_with_the_lock(client: Client, holder: psycopg.Connection) -> None:
    def post() -> Any:
        return client.post("/once/7/", headers={"Idempotency-Key": "k"})

    hold(holder, "order:7")
    assert post().status_code == 423
    holder.rollback()
    assert post().content == b"done"
    assert post().headers["Idempotent-Replayed"] == "true"
    assert seen["free"] is False
    assert is_free(holder, "order:7")
    assert orders() == 1


def test_a_transaction_of_a_middleware_on_another_database_is_refused(
    client: Client, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.in_default"]
    with pytest.raises(InvalidRedlock, match="'default' is open around"):
        client.post("/pay/7/")


def in_default(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        with transaction.atomic("default"):
            return get_response(request)

    return middleware


async def test_a_sync_view_under_asgi_works(client: Client, holder: psycopg.Connection) -> None:
    answer = await AsyncClient().post("/pay/7/")
    await sync_to_async(connections.close_all)()
    assert answer.status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")
