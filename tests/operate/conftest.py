"""Fixtures for the tests of the admin and the commands: users, and stores."""

from __future__ import annotations

import builtins
import html
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client

from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.backends.redis import backend
from tests.live.left_over import nothing_left
from tests.live.linked import linked
from tests.operate.commands import IN_MEMORY, run
from tests.operate.sites import DATABASE, SITES, Site
from tests.timeouts import patient_site, redlock_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

LIST = "/admin/redlock_django/heldlock/"


def listed(client: Client, **query: str) -> list[str]:
    """Return the names on the page of held locks."""
    page: Any = client.get(LIST, query)
    assert page.status_code == 200
    return [row["name"] for row in page.context["rows"]]


def text_of(answer: Any) -> str:
    """Return what a reader sees of a page, on one line."""
    assert answer.status_code == 200
    text = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", answer.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


def release(client: Client, *ids: str, using: str = "") -> list[str]:
    """Confirm the release of these locks, "fingerprint:resource", and return the messages."""
    url = f"{LIST}?using={using}" if using else LIST
    answer: Any = client.post(url, {"lock": ids, "confirmed": "yes"})
    assert answer.status_code == 302, answer.content.decode()
    assert answer.url == url
    return [str(message) for message in get_messages(answer.wsgi_request)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for a master in an inspection: on a busy machine, one may need 0.5 s."""
    monkeypatch.setattr(backend, "INSPECTION_TIMEOUT", 5.0)


@pytest.fixture
def short_wait(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait two seconds for a master in an inspection, for a test in which some do not answer."""
    monkeypatch.setattr(backend, "INSPECTION_TIMEOUT", 2.0)


@pytest.fixture
def five(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """Five real masters, used by two aliases with different key prefixes."""
    payments = {**patient_site(masters)["default"], "KEY_PREFIX": "payments"}
    settings.REDLOCK = {"payments": payments, **patient_site(masters)}
    return masters


@pytest.fixture
def linked_masters(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """Five real masters that are trusted and connected, and hold nothing."""
    settings.REDLOCK = patient_site(masters)
    linked()
    nothing_left(masters)
    return masters


@pytest.fixture
def declared(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """Five real masters that redlock_init has declared as new."""
    settings.REDLOCK = redlock_of(*(one.url for one in masters), shortest_ttl=2)
    assert run("redlock_init").status == 0
    return masters


@pytest.fixture
def in_memory(settings: Settings) -> None:
    """Three masters in memory, used by two aliases."""
    settings.REDLOCK = IN_MEMORY


@pytest.fixture(params=["memory", "database"])
def site(request: pytest.FixtureRequest, settings: Settings) -> Site:
    """A store with locks; a test that uses it runs once for each store."""
    return SITES[request.param](request, settings)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the answers of a user at a terminal."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def answers(*answers: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        given = iter(answers)

        def read(prompt: str = "") -> str:
            assert prompt == ""  # A prompt would be written to stdout.
            meanwhile()
            answer = next(given)
            if answer == "^D":
                raise EOFError
            return answer

        monkeypatch.setattr(builtins, "input", read)

    return answers


@pytest.fixture
def database_down(
    database_access: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the locks in a file that cannot be opened."""
    monkeypatch.setattr(DatabaseSettings, "sqlite_file", "/nowhere/site.sqlite3.locks")
    settings.REDLOCK = {"default": {"BACKEND": DATABASE}}


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Return a function that logs in a staff user with the given permissions."""

    def logged_in(*codenames: str, **options: bool) -> Client:
        user = User.objects.create_user("-".join(["staff", *codenames, *options]), is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client = Client(**options)  # type: ignore[arg-type]
        client.force_login(user)
        return client

    return logged_in


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    """A user who may view held locks."""
    return staff("view_heldlock")


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """A user who may view and release held locks."""
    return staff("view_heldlock", "release_heldlock")
