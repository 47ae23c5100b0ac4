"""The examples of docs/how-to/permits.md work as written, and its numbers are right."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import RequestFactory

import redlock_django
from redlock_django import exceptions, lock
from redlock_django.exceptions import LimitReached
from redlock_django.fenced import Fenced
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.test_documents import ROOT

PAGE = (ROOT / "docs/how-to/permits.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.usefixtures("redlock_memory")


@pytest.fixture
def names() -> dict[str, Any]:
    """The names of the page, whose blocks follow each other in one module."""
    module: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, module)
    return module


def test_three_hold_the_first_name_of_the_page(names: dict[str, Any]) -> None:
    held = names["held"]
    assert held.limit == 3
    with held_elsewhere("export", limit=2), held:
        assert held.slot in {0, 1, 2}
    with held_elsewhere("export", limit=3), pytest.raises(LimitReached):
        lock("export", limit=3).acquire()


@pytest.mark.parametrize(("view", "status"), [("report", 423), ("make_report", 429)])
@pytest.mark.django_db
def test_a_limit_for_each_user(names: dict[str, Any], view: str, status: int) -> None:
    request = RequestFactory().get("/", headers={"Accept": "application/json"})
    request.user = User(pk=7)
    with held_elsewhere("report:7", limit=2):
        answer = names[view](request)
    assert answer.status_code == status
    assert json.loads(answer.content)["code"] == "limit-reached"
    assert int(answer["Retry-After"]) > 0
    with held_elsewhere("report:7"):
        assert names[view](request) is None


def test_five_calls_of_a_partner(names: dict[str, Any]) -> None:
    assert names["ask_partner"]("why?") is None
    names["order_at_partner"](1)
    with held_elsewhere("partner-api", limit=5):
        assert names["ask_partner"]("why?") is None  # skipped


@pytest.mark.django_db
def test_each_slot_has_its_own_share_of_the_rows(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(Order, "save", lambda self: saved.append(self.pk))
    orders = Order.objects.bulk_create(Order(number=str(n), total=1) for n in range(10))
    workers = [lock("reminders", limit=4) for _ in range(4)]
    for worker in workers:
        worker.acquire().disown()
    for worker in workers:
        slot = worker.slot
        worker.release()
        names["work"](Order.objects.all(), wait=0)  # takes the share of a worker that ended
        assert {pk % 4 for pk in saved[-2:]} == {slot}
        worker.acquire().disown()
    assert sorted(saved) == sorted(order.pk for order in orders)


def test_the_bound_of_a_count_is_that_of_the_example() -> None:
    [(limit, needed, masters)] = re.findall(r"with limit (\d), all (\d) of (\d)", PAGE)
    assert "⌊N·k / (k + 1)⌋ + 1 of N masters" in PAGE
    assert int(masters) * int(limit) // (int(limit) + 1) + 1 == int(needed)


def test_everything_that_takes_a_limit_is_named() -> None:
    assert "limit" in inspect.signature(redlock_django.lock).parameters
    for name in ("`limit`", "`lock_limit`", "`--limit`"):
        assert name in PAGE


REFUSED: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: lock("a", limit=0), ValueError),
    (lambda: lock("a", "b", limit=2), exceptions.BadResource),
    (lambda: held_twice(limit=3, reentrant=True), exceptions.AlreadyHeld),
    (lambda: held_twice(), exceptions.AlreadyHeld),
    (lambda: Fenced(ContentType.objects.all(), lock("a", limit=2)), ValueError),
    (lambda: lock("a" * 508, limit=2), exceptions.BadName),
]


def held_twice(limit: int = 2, *, reentrant: bool = False) -> None:
    with lock("a", limit=2), lock("a", limit=limit, reentrant=reentrant):
        pass


@pytest.mark.parametrize(("write", "error"), REFUSED)
def test_what_the_page_names_as_refused_raises(
    write: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write()
