"""The admin's list of held locks: its queries, its contents, its permissions."""

from __future__ import annotations

import html
import io
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.utils.html import escape

from redlock_django.admin import held_locks_page
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.redis import RedisBackend
from redlock_django.models import HeldLock
from redlock_django.operate.inspection import held_locks
from tests.operate.commands import THREE_IN_MEMORY
from tests.operate.conftest import LIST, listed, text_of
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

    monkeypatch.setattr(held_locks_page, "held_locks", spied)
    return calls


def body_of(client: Client, **query: str) -> str:
    page = client.get(LIST, query)
    assert page.status_code == 200
    return page.content.decode()


def shown(client: Client, **query: str) -> str:
    """Return what a reader sees of the list."""
    return text_of(client.get(LIST, query))


@pytest.mark.parametrize("site", ["masters", "database"], indirect=True)
def test_a_row_shows_holder_time_and_servers(site: Site, viewer: Client) -> None:
    site.put("order:1", ttl=50)
    many = len(site.servers)
    text = shown(viewer)
    row = r"order:1 web1 · pid 7 · shop /orders/1/pay/ user 7 [\d:]{8} for 4\d s (4\d|50) s "
    assert re.search(f"{row}{many}/{many} held", text), text
    assert "1 lock is held." in text


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
    assert "order:1" in body_of(viewer)


@pytest.mark.slow
@on_stores
def test_a_page_is_queried_once(site: Site, viewer: Client, asked: list[dict[str, Any]]) -> None:
    for number in range(53):
        site.put(f"n:{number:03}", ttl=100 + number)
    assert len(listed(viewer)) == 50
    assert "53 locks are held." in shown(viewer)
    assert len(asked) == 2
    assert listed(viewer, p="2") == ["n:050", "n:051", "n:052"]
    assert len(asked) == 3
    for wrong in ("9", "0", "x", "²", "99999999999"):
        assert len(listed(viewer, p=wrong)) == 50


@on_stores
def test_the_links_to_pages_keep_the_search(site: Site, viewer: Client) -> None:
    for number in range(120):
        site.put(f"n:{number:03}", ttl=100 + number)
    text = body_of(viewer, q="n: web1", p="2", refresh="5")
    for words, number in (("Previous", 1), ("Next", 3)):
        (link,) = re.findall(rf'<a href="([^"]+)" rel="\w+">{words}</a>', text)
        query = html.unescape(link).partition("?")[2]
        assert query == f"q=n%3A+web1&p={number}&refresh=5"
    assert "Page 2 of 3" in text
    assert "120 locks match." in text


@on_stores
def test_one_search_finds_names_and_holders(site: Site, viewer: Client) -> None:
    site.put("order:1", host="web1")
    site.put("order:2", host="web2")
    site.put("user:1", host="web1")
    assert sorted(listed(viewer, q=" web1 ")) == ["order:1", "user:1"]
    assert listed(viewer, q="order: web1") == ["order:1"]
    assert "1 lock matches." in shown(viewer, q="order: web1")
    body = body_of(viewer, q='"><script>')
    assert "No lock matches." in body
    assert '"><script>' not in body
    (form,) = re.findall(r'<form method="get".*?</form>', body_of(viewer, q="1"), re.DOTALL)
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    assert [field for field in fields if field[0] != "using"] == [("q", "1")]
    assert f'<a href="{LIST}">Show all</a>' in form
    assert "Show all" not in body_of(viewer)


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
    assert f"{number} locks are held." in shown(viewer)


def test_a_cut_list_is_reported(
    five: list[LocalMaster], viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        plant(five, f"order:{number}", ttl=50 + number)
    assert "Only those that expire first were read." not in body_of(viewer)
    monkeypatch.setattr(Inspection, "MAX_LISTED", 2)
    assert "Only those that expire first were read." in body_of(viewer)


def test_an_empty_list_explains_when_locks_appear(five: list[LocalMaster], viewer: Client) -> None:
    assert "while a client holds it" in body_of(viewer)
    assert "while a client holds it" not in body_of(viewer, q="x")
    for master in five[:3]:
        master.kill()
    body = body_of(viewer)
    assert "while a client holds it" not in body
    assert "No quorum: locks are refused now." in body


def test_states_are_explained(five: list[LocalMaster], viewer: Client) -> None:
    plant(five, "order:1", ttl=50)
    assert "minority" not in body_of(viewer)
    plant(five[:2], "order:2", ttl=60)
    plant_value(five, "order:3", "theirs", ttl=70)
    text = shown(viewer)
    assert "partial: only a minority of the servers stores it." in text
    assert "foreign: another program has set it." in text


def test_a_server_without_the_lock_is_named(five: list[LocalMaster], viewer: Client) -> None:
    plant(five[:4], "order:1")
    text = shown(viewer)
    assert f"4/5 not on 127.0.0.1:{five[4].port} held" in text
    assert "The next renewal stores the lock there." in text


def test_a_lock_whose_name_is_not_valid_has_no_checkbox(
    five: list[LocalMaster], operator: Client
) -> None:
    """Another program has set it. No client of this package can hold or release it."""
    plant_value(five, "a*b", "theirs", ttl=50)
    plant_value(five, "e\u0301", "theirs", ttl=60)  # in another normal form of Unicode
    plant_value(five, "order:1", "theirs", ttl=70)
    assert listed(operator) == ["a*b", "e\u0301", "order:1"]
    assert body_of(operator).count('name="lock"') == 1


@on_stores
def test_what_a_row_says_of_a_lock_besides(site: Site, viewer: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    site.put("order:1")
    site.add_waiters("order:1", 2)
    site.put("order:2", at=1e9, min_hold=5e9)
    site.put("order:3", at=1e9, min_hold=5)  # long over
    site.put("order:4", at=1e9, handed_on=1)
    text = shown(viewer)
    assert "held 2 waiters" in text
    assert text.count("minimum hold") == 1
    assert "minimum hold until 19:40:00" in text  # 1e9 + 5e9 seconds after 1970, UTC+9
    assert text.count("handed on, not yet taken") == 1


def test_every_alias_has_a_list(five: list[LocalMaster], viewer: Client) -> None:
    plant(five, "order:1")
    plant(five, "invoice:1", prefix="payments")
    assert listed(viewer) == ["order:1"]
    assert listed(viewer, using="payments") == ["invoice:1"]
    assert listed(viewer, using="nope") == ["order:1"]
    assert f'<a href="{LIST}?using=payments">payments</a>' in body_of(viewer)
    body = body_of(viewer, using="payments")
    assert '<a href="/admin/redlock_django/heldlock/?using=default">default</a>' in body
    assert '<input type="hidden" name="using" value="payments">' in body
    assert '?using=payments" aria-current="true">payments</a>' in body


@pytest.mark.parametrize("seconds", ["5", "2", "3600"])
def test_the_list_is_loaded_again_on_request(
    site: Site, operator: Client, viewer: Client, seconds: str
) -> None:
    site.put("order:1")
    body = body_of(operator, q="order", refresh=seconds)
    assert f'<meta http-equiv="refresh" content="{seconds}">' in body
    assert 'name="lock"' not in body  # the next load would deselect it
    assert f'href="{LIST}?q=order">Stop, to select locks</a>' in body
    assert "to select locks" not in body_of(viewer, refresh=seconds)


@pytest.mark.parametrize("seconds", ["", "0", "1", "3601", "-5", "x", "5; url=https://evil"])
def test_the_list_is_not_loaded_again_otherwise(site: Site, operator: Client, seconds: str) -> None:
    site.put("order:1")
    body = body_of(operator, refresh=seconds)
    assert 'http-equiv="refresh"' not in body
    assert 'name="lock"' in body
    assert f'href="{LIST}?refresh=5">Refresh every 5 s</a>' in body


@pytest.mark.slow
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
        text = shown(viewer)
        assert time.monotonic() - began < 5 + late()
    five[4].resume()
    assert len(inspections) == 1
    assert "Quorum: 4 of 5 servers are counted, 3 are needed." in text
    assert f"127.0.0.1:{five[4].port} did not answer within 2 s. Start it, or repair" in text
    assert "order:1" in text
    assert "4/5" in text


def test_page_with_every_master_down(five: list[LocalMaster], viewer: Client) -> None:
    for master in five:
        master.kill()
    body = body_of(viewer)
    assert body.count("refused the connection") == 5
    assert "No server answered, so it is unknown which locks are held." in body


def test_page_shows_faults_of_servers(five: list[LocalMaster], viewer: Client) -> None:
    with five[0].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", "100mb")
    with five[1].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    text = shown(viewer)
    advice = "(maxmemory-policy allkeys-lru). Set maxmemory-policy to noeviction."
    assert f"127.0.0.1:{five[0].port} may evict locks {advice}" in text
    ports = f"127.0.0.1:{five[1].port} would evict locks if it had a maxmemory"
    assert f"{ports} {advice} It is counted." in text
    assert "4 of 5 servers are counted" in text


def test_page_shows_invalid_settings(viewer: Client, operator: Client, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTRES": []}}
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "redlock" not in one]
    assert "MASTRES" in body_of(viewer)
    for sent in ({"lock": "x:a"}, {"lock": "x:a", "confirmed": "yes"}):
        assert "MASTRES" in operator.post(LIST, sent).content.decode()


def test_no_password_is_shown(viewer: Client, operator: Client, settings: Settings) -> None:
    urls = [f"redis://me:sesame@127.0.0.1:{port}/0" for port in (1, 2, 3)]
    settings.REDLOCK = {"default": {"MASTERS": urls, "OPTIONS": {"password": "sesame"}}}
    for page in (viewer.get(LIST), operator.post(LIST, {"lock": "x:a"})):
        assert "sesame" not in page.content.decode()


@on_stores
def test_holder_fields_are_escaped(site: Site, operator: Client) -> None:
    evil = "<script>alert(1)</script>"
    print_ = site.put("order:1", path=evil, host=evil, user=evil, app="\u202eppa")
    site.put("odd:'&%3C;/é~ü")
    site.put("<b>bad name</b>\n")
    for page in (operator.get(LIST), operator.post(LIST, {"lock": f"{print_}:order:1"})):
        body = page.content.decode()
        assert page.status_code == 200
        assert evil not in body
        assert "&lt;script&gt;alert(1)" in body
        assert "\u202e" not in body
        assert "<b>bad" not in body
    ids = re.findall(r'name="lock" value="([^"]+)"', operator.get(LIST).content.decode())
    for one in map(html.unescape, ids):
        assert "Yes, release it" in operator.post(LIST, {"lock": one}).content.decode()
        done = operator.post(LIST, {"lock": one, "confirmed": "yes"}, follow=True)
        assert f"Released: {escape(one.partition(':')[2])}." in done.content.decode()


def csp_nonce(request: Any) -> dict[str, Any]:
    """The context processor of Django 6 and of django-csp."""
    return {"csp_nonce": "of-this-page"}


@on_stores
def test_every_element_of_the_page_has_the_nonce(
    site: Site, operator: Client, settings: Settings
) -> None:
    """Under a policy that allows nonces only, the browser blocks every other style and script."""
    print_ = site.put("order:1")
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
    for page in (operator.get(LIST), operator.post(LIST, {"lock": f"{print_}:order:1"})):
        elements = re.findall(r"<(?:link|script)[^>]*redlock_django/[^>]*>", page.content.decode())
        assert elements
        assert all('nonce="of-this-page"' in element for element in elements), elements


@on_stores
def test_breadcrumbs_are_the_element_that_this_django_styles(
    site: Site, staff: Callable[..., Client]
) -> None:
    client = staff("view_heldlock", "view_idempotencyrecord")
    django_own = client.get("/admin/redlock_django/idempotencyrecord/").content.decode()
    (element,) = re.findall(r'<(\w+) class="breadcrumbs">', django_own)
    assert re.findall(r'<(\w+) class="breadcrumbs">', body_of(client)) == [element]


def test_one_server_with_a_replica_says_what_is_excluded(
    settings: Settings, viewer: Client
) -> None:
    settings.REDLOCK = {
        "default": {**THREE_IN_MEMORY, "MASTERS": ["redis://one"], "PROFILE": "failover"}
    }
    said = "nothing is granted for 79 s after it, and two clients hold a lock only while"
    assert said in body_of(viewer)


def test_dumpdata_skips_held_locks() -> None:
    out = io.StringIO()
    call_command("dumpdata", "redlock_django", stdout=out)
    assert json.loads(out.getvalue()) == []
    assert not HeldLock.objects.all()
