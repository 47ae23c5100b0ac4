"""The admin's list of held locks: its queries, its contents, its permissions."""

from __future__ import annotations

import html
import io
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.core.exceptions import FieldError
from django.core.management import call_command
from django.db.models import Q

from redlock_django.admin.held_locks import queryset as asking
from redlock_django.admin.held_locks.queryset import HeldLockQuerySet
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.redis import RedisBackend
from redlock_django.engine.inspection.holders import HoldingState
from redlock_django.models import HeldLock
from redlock_django.operate.inspection import held_locks
from tests.operate.commands import THREE_IN_MEMORY
from tests.operate.conftest import LIST, RELEASE
from tests.operate.planted import plant, plant_value
from tests.operate.sites import Site, on_stores
from tests.waiting import stalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.django_db]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every query for a page."""
    calls: list[dict[str, Any]] = []

    def spied(using: str, **what: Any) -> Any:
        calls.append({"using": using, **what})
        return held_locks(using, **what)

    monkeypatch.setattr(asking, "held_locks", spied)
    return calls


def names(page: Any) -> list[str]:
    return [lock.resource for lock in page.context["cl"].result_list]


@pytest.mark.parametrize("site", ["masters", "database"], indirect=True)
def test_a_row_shows_holder_time_and_masters(site: Site, viewer: Client) -> None:
    site.put("order:1", ttl=50)
    body = viewer.get(LIST).content.decode()
    many = len(site.servers)
    on_all = f"{many}/{many}"
    for text in (
        "order:1",
        "web1 · pid 7 · shop",
        "/orders/1/pay/",
        "user\u00a07",
        on_all,
        "for 4",
    ):
        assert text in body, text
    assert "1 lock is held." in body
    assert 'action="' not in body.split('id="changelist-form"')[1].split(">")[0]


@pytest.mark.attack
@on_stores
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
@pytest.mark.parametrize("at", [253402300799.0, 253402257600.0, -62135596800.0])
def test_a_holder_with_a_time_at_the_end_of_the_calendar(
    site: Site, viewer: Client, settings: Settings, zone: str, at: float
) -> None:
    """Any client of a master can write any number there."""
    settings.TIME_ZONE = zone
    site.put("order:1", at=at)
    assert "order:1" in viewer.get(LIST).content.decode()


@on_stores
def test_a_page_is_queried_once(site: Site, viewer: Client, asked: list[dict[str, Any]]) -> None:
    for number in range(53):
        site.put(f"n:{number:03}", ttl=100 + number)
    first = viewer.get(LIST)
    assert len(names(first)) == 50
    assert first.context["cl"].result_count == 53
    second = viewer.get(LIST, {"p": 2})
    assert names(second) == ["n:050", "n:051", "n:052"]
    assert len(asked) == 2
    assert viewer.get(LIST, {"p": 9}).status_code == 302
    assert len(names(viewer.get(LIST, {"all": ""}))) == 50


@on_stores
def test_order_by_ttl_or_name(site: Site, viewer: Client) -> None:
    site.put("b", ttl=90)
    site.put("a", ttl=95)
    site.put("c", ttl=85)
    assert names(viewer.get(LIST)) == ["c", "b", "a"]
    columns = viewer.get(LIST).context["cl"].list_display
    by_time, by_name = columns.index("time_left"), columns.index("name")
    assert names(viewer.get(LIST, {"o": f"-{by_time}"})) == ["a", "b", "c"]
    assert names(viewer.get(LIST, {"o": str(by_name)})) == ["a", "b", "c"]
    assert names(viewer.get(LIST, {"o": f"-{by_name}"})) == ["c", "b", "a"]


@on_stores
def test_order_by_age_and_holder(site: Site, viewer: Client) -> None:
    site.put("a", host="web2", at=1790000003)
    site.put("b", host="web1", at=1790000002)
    site.put("c", host="web3", at=1790000001)
    columns = viewer.get(LIST).context["cl"].list_display
    since, holder = columns.index("held_since"), columns.index("held_by")
    assert names(viewer.get(LIST, {"o": str(since)})) == ["c", "b", "a"]
    assert names(viewer.get(LIST, {"o": f"-{holder}"})) == ["c", "a", "b"]


@on_stores
def test_filters_by_prefix_and_holder(site: Site, viewer: Client) -> None:
    site.put("order:1", host="web1")
    site.put("order:2", host="web2")
    site.put("preorder:1", host="web1")
    page = viewer.get(LIST, {"prefix": " order: ", "holder": "web1"})
    assert names(page) == ["order:1"]
    assert "1 lock matches." in page.content.decode()
    page = viewer.get(LIST, {"prefix": '"><script>', "state": "held", "q": "x"})
    assert "No lock matches." in page.content.decode()
    assert "<script>'" not in page.content.decode()
    assert page.context["cl"].kept_parameters == [("state", "held")]


@on_stores
def test_one_form_searches_and_filters(site: Site, viewer: Client) -> None:
    for name in ("order:1", "order:2", "user:1"):
        site.put(name)
    chosen = {"q": "1", "prefix": "order", "holder": "web1", "using": "default"}
    page = viewer.get(LIST, {**chosen, "o": "1", "state": "held"})
    assert names(page) == ["order:1"]
    (form,) = re.findall(r'<form method="get".*?</form>', page.content.decode(), re.DOTALL)
    fields = dict(re.findall(r'<input type="\w+" name="(\w+)" value="([^"]*)"', form))
    assert fields == {**chosen, "o": "1", "state": "held"}
    (every,) = re.findall(r'<a href="([^"]+)">Show all</a>', form)
    assert html.unescape(every) == "?o=1&using=default"
    assert len(names(viewer.get(LIST + html.unescape(every)))) == 3
    assert "Show all" not in viewer.get(LIST).content.decode()


def test_the_counts_of_states_keep_every_filter(five: list[LocalMaster], viewer: Client) -> None:
    plant(five, "order:1")
    plant(five, "user:1")
    ((_badge, _number, link),) = viewer.get(LIST, {"prefix": "order"}).context["cl"].states
    assert names(viewer.get(LIST + link)) == ["order:1"]


@pytest.mark.parametrize(
    ("language", "grouped", "number"),
    [("en", False, "1200"), ("en", True, "1,200"), ("de", True, "1.200")],
)
def test_numbers_have_the_format_of_the_site(
    five: list[LocalMaster],
    viewer: Client,
    settings: Settings,
    language: str,
    grouped: bool,
    number: str,
) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = language, grouped
    with five[0].client() as client:
        name = "redlock:held"
        client.zadd(name, {f"order:{n}": time.time() * 1000 + 600_000 for n in range(1200)})
        client.mset({f"redlock:lock:order:{n}": "theirs" for n in range(1200)})
    page = html.unescape(re.sub("<[^>]*>", " ", viewer.get(LIST).content.decode()))
    shown = re.findall(r"1\D?200(?!\d)", page)
    assert len(shown) == 4, shown  # above the list, of a state, at its end, of the masters
    assert set(shown) == {number}


def test_states_are_counted_and_a_cut_list_is_reported(
    five: list[LocalMaster], viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(five, "order:1", ttl=50)
    plant(five, "order:2", ttl=60)
    plant(five[:2], "order:3", ttl=70)
    shown = viewer.get(LIST).context["cl"]
    assert [(number, link) for _badge, number, link in shown.states] == [
        ("2", "?state=held"),
        ("1", "?state=partial"),
    ]
    assert shown.stopped == ""
    monkeypatch.setattr(Inspection, "MAX_LISTED", 2)
    shown = viewer.get(LIST, {"state": "held"}).context["cl"]
    assert "Only those that expire first were read." in shown.stopped


def test_an_empty_list_explains_when_locks_appear(five: list[LocalMaster], viewer: Client) -> None:
    assert "while a client holds it" in viewer.get(LIST).content.decode()
    assert "while a client holds it" not in viewer.get(LIST, {"q": "x"}).content.decode()
    for master in five[:3]:
        master.kill()
    body = viewer.get(LIST).content.decode()
    assert "while a client holds it" not in body
    assert "No quorum: locks are refused now." in body


def test_a_lock_whose_name_is_not_valid_has_no_page_and_no_checkbox(
    five: list[LocalMaster], operator: Client
) -> None:
    """Another program has set it. No client of this package can hold or release it."""
    plant_value(five, "a*b", "theirs", ttl=50)
    plant_value(five, "e\u0301", "theirs", ttl=60)  # in another normal form of Unicode
    plant_value(five, "order:1", "theirs", ttl=70)
    page = operator.get(LIST)
    assert names(page) == ["a*b", "e\u0301", "order:1"]
    body = page.content.decode()
    (link,) = re.findall(r'<th class="field-name"><a href="([^"]+)"', body)
    assert "State on each server" in operator.get(link).content.decode()
    assert body.count("field-name") == 3
    assert body.count('name="_selected_action"') == 1


@on_stores
def test_the_list_shows_waiters(site: Site, viewer: Client) -> None:
    site.put("order:1")
    site.add_waiters("order:1", 2)
    assert "2 waiters" in viewer.get(LIST).content.decode()


@on_stores
def test_the_end_of_a_minimum_hold(site: Site, viewer: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    lock_id = f"{site.put('order:1', at=1e9, min_hold=5e9)}:default:order:1"
    site.put("order:2", at=1e9, min_hold=5)  # long over
    until = "minimum hold until 19:40:00"  # 1e9 + 5e9 seconds after 1970, UTC+9
    assert viewer.get(LIST).content.decode().count("minimum hold") == 1
    for page in (LIST, f"{LIST}{lock_id}/change/"):
        assert until in viewer.get(page).content.decode()


def test_a_lock_that_was_handed_on_and_not_taken(site: Site, viewer: Client) -> None:
    lock_id = f"{site.put('order:1', at=1e9, handed_on=1)}:default:order:1"
    site.put("order:2", at=1e9)
    assert viewer.get(LIST).content.decode().count("handed on, not yet taken") == 1
    assert "handed on, not yet taken" in viewer.get(f"{LIST}{lock_id}/change/").content.decode()


def test_search_and_filters(five: list[LocalMaster], viewer: Client) -> None:
    plant(five, "order:1")
    plant(five[:2], "order:2")
    plant(five, "user:1")
    plant(five, "invoice:1", prefix="payments")
    by_name = viewer.get(LIST).context["cl"].list_display.index("name")
    found = names(viewer.get(LIST, {"q": "order", "o": str(by_name)}))
    assert found == ["order:1", "order:2"]
    assert names(viewer.get(LIST, {"state": "partial"})) == ["order:2"]
    assert names(viewer.get(LIST, {"using": "payments"})) == ["invoice:1"]
    assert names(viewer.get(LIST, {"using": "payments", "state": "partial"})) == []
    aliases = [
        choice["display"]
        for choice in viewer.get(LIST)
        .context["cl"]
        .filter_specs[0]
        .choices(viewer.get(LIST).context["cl"])
    ]
    assert aliases == ["default", "payments"]
    for wrong in ({"using": "nope"}, {"state": "nope"}):
        assert viewer.get(LIST, wrong).status_code == 302
    assert len(names(viewer.get(LIST, {"p": "99"}))) == 3
    assert viewer.get(LIST, {"resource__regex": "(a+)+"}).status_code == 302


def test_a_hanging_master_costs_one_timeout(
    five: list[LocalMaster],
    short_wait: None,
    viewer: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspections: list[Any] = []
    inspect = RedisBackend.inspect

    def spied(backend: RedisBackend) -> Any:
        inspections.append(inspect(backend))
        return inspections[-1]

    monkeypatch.setattr(RedisBackend, "inspect", spied)
    plant(five, "order:1")
    five[4].pause()
    with stalls() as late:
        began = time.monotonic()
        page = viewer.get(LIST)
        assert time.monotonic() - began < 5 + late()
    five[4].resume()
    assert len(inspections) == 1
    rows = page.context["cl"].masters
    assert [row.level for row in rows] == ["ok"] * 4 + ["error"]
    assert "did not answer within 2 s" in page.content.decode()
    assert names(page) == ["order:1"]
    assert "4/5" in page.content.decode()


def test_page_with_every_master_down(five: list[LocalMaster], viewer: Client) -> None:
    for master in five:
        master.kill()
    page = viewer.get(LIST)
    assert page.status_code == 200
    assert page.content.decode().count("refused the connection") == 10  # in banner and table
    assert "No server answered, so it is unknown which locks are held." in page.content.decode()
    assert viewer.get(f"{LIST}0123abcd:default:order_3A1/change/", follow=True).status_code == 200


def test_page_with_a_database_that_does_not_answer(database_down: None, viewer: Client) -> None:
    page = viewer.get(LIST)
    assert page.status_code == 200
    body = page.content.decode()
    assert body.count("unable to open database file") == 2  # in banner and table
    assert "No quorum: locks are refused now." in body
    assert viewer.get(f"{LIST}0123abcd:default:order_3A1/change/", follow=True).status_code == 200


def test_page_shows_faults_of_masters(five: list[LocalMaster], viewer: Client) -> None:
    with five[0].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", "100mb")
    body = viewer.get(LIST).content.decode()
    assert "not counted" in body
    assert "allkeys-lru, 100" in body


def test_page_shows_invalid_settings(viewer: Client, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTRES": []}}
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "redlock" not in one]
    page = viewer.get(LIST)
    assert page.status_code == 200
    assert "MASTRES" in page.content.decode()


def test_no_password_is_shown(viewer: Client, operator: Client, settings: Settings) -> None:
    urls = [f"redis://me:sesame@127.0.0.1:{port}/0" for port in (1, 2, 3)]
    settings.REDLOCK = {"default": {"MASTERS": urls, "OPTIONS": {"password": "sesame"}}}
    for page in (viewer.get(LIST), operator.post(RELEASE, {"_selected_action": "x:default:a"})):
        assert "sesame" not in page.content.decode()


@on_stores
def test_holder_fields_are_escaped(site: Site, operator: Client) -> None:
    evil = "<script>alert(1)</script>"
    print_ = site.put("order:1", path=evil, host=evil, user=evil, app="\u202eppa")
    site.put("odd:'&%3C;/é~ü")
    site.put("<b>bad name</b>\n")
    shown = f"{LIST}{print_}_3Adefault_3Aorder_3A1/change/"
    asking_ = operator.post(RELEASE, {"_selected_action": f"{print_}:default:order:1"})
    for page in (operator.get(LIST), operator.get(shown), asking_):
        body = page.content.decode()
        assert page.status_code == 200
        assert evil not in body
        assert "&lt;script&gt;alert(1)" in body
        assert "\u202e" not in body
        assert "<b>bad" not in body
    links = re.findall(r'<a href="([^"]+/change/)"', operator.get(LIST).content.decode())
    assert len(links) == 2
    for link in links:
        assert operator.get(html.unescape(link)).status_code == 200


@on_stores
def test_the_pages_need_the_view_permission(
    site: Site, staff: Callable[..., Client], viewer: Client
) -> None:
    print_ = site.put("order:1")
    one = f"{LIST}{print_}_3Adefault_3Aorder_3A1/"
    clerk = staff()
    assert "Held locks" not in clerk.get("/admin/").content.decode()
    for url in (LIST, one + "change/", one + "history/"):
        assert clerk.get(url).status_code == 403, url
    assert "Held locks" in viewer.get("/admin/").content.decode()
    assert viewer.get(one + "change/").status_code == 200
    for url in (LIST + "add/", one + "delete/"):
        assert viewer.get(url).status_code == 403, url
    alone = staff("release_heldlock")
    assert alone.get(LIST).status_code == 403
    assert alone.post(RELEASE, {"_selected_action": "x"}).status_code == 403


def csp_nonce(request: Any) -> dict[str, Any]:
    """The context processor of Django 6 and of django-csp."""
    return {"csp_nonce": "of-this-page"}


@on_stores
def test_every_element_of_the_pages_has_the_nonce(
    site: Site, operator: Client, settings: Settings
) -> None:
    """Under a policy that allows nonces only, the browser blocks every other style and script."""
    site.put("order:1")
    settings.TEMPLATES = [
        {
            **settings.TEMPLATES[0],
            "OPTIONS": {
                "context_processors": [
                    *settings.TEMPLATES[0]["OPTIONS"]["context_processors"],
                    f"{__name__}.csp_nonce",
                ]
            },
        }
    ]
    lock = operator.get(LIST).context["cl"].result_list[0]
    pages = [
        operator.get(f"{LIST}{quote(lock.pk)}/change/"),
        operator.post(RELEASE, {"_selected_action": lock.pk}),
    ]
    for page in pages:
        elements = re.findall(r"<(?:link|script)[^>]*redlock_django/[^>]*>", page.content.decode())
        assert elements
        assert all('nonce="of-this-page"' in element for element in elements), elements


@on_stores
def test_breadcrumbs_are_the_element_that_this_django_styles(site: Site, operator: Client) -> None:
    site.put("order:1")
    lock = operator.get(LIST).context["cl"].result_list[0]
    detail = operator.get(f"{LIST}{quote(lock.pk)}/change/").content.decode()
    django_own = operator.get(LIST).content.decode()
    (element,) = re.findall(r'<(\w+) class="breadcrumbs">', django_own)
    assert re.findall(r'<(\w+) class="breadcrumbs">', detail) == [element]


def test_one_server_with_a_replica_says_what_is_excluded(
    settings: Settings, viewer: Client
) -> None:
    settings.REDLOCK = {
        "default": {**THREE_IN_MEMORY, "MASTERS": ["redis://one"], "PROFILE": "failover"}
    }
    said = "nothing is granted for 79 s after it, and two clients hold a lock only while"
    assert said in viewer.get(LIST).content.decode()


def test_dumpdata_skips_held_locks() -> None:
    out = io.StringIO()
    call_command("dumpdata", "redlock_django", stdout=out)
    assert json.loads(out.getvalue()) == []
    assert not HeldLock.objects.all()


# Methods that Django's QuerySet and ChangeList call.


@on_stores
def test_a_narrowed_queryset_is_a_clone_with_its_own_query(
    site: Site, asked: list[dict[str, Any]]
) -> None:
    print_ = site.put("order:1")
    every: Any = HeldLockQuerySet(HeldLock)
    some = every.asking(state=HoldingState.HELD, search="order").order_by("-resource", "-pk")
    assert (every.asked.state, every.asked.search, every.asked.order) == (None, "", "ttl")
    assert some._chain().asked == some.all().asked == some._clone().asked == some.asked
    assert not asked
    assert some.count() == len(some) == len(some[0:100]) == len(some._clone()) == 1
    assert some.exists()
    assert len(asked) == 1
    assert asked[0]["state"] is HoldingState.HELD
    assert every.order_by().filter(Q()).asked == every.asked
    held = every.get(pk=f"{print_}:default:order:1")
    assert (held.resource, held.using, held.fingerprint) == ("order:1", "default", print_)
    assert list(every.filter(pk__in=[held.pk, "nonsense", "x:y:z"])) == [held]
    with pytest.raises(HeldLock.DoesNotExist):
        every.get(pk="00000000:default:order:1")
    for lookup in ({"resource": "order:1"}, {"pk": 1, "using": "default"}):
        with pytest.raises(FieldError, match="by id only"):
            every.filter(**lookup)
