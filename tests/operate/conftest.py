"""Fixtures for the tests of the admin: users, and five masters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

LIST = "/admin/redlock_django/heldlock/"
RELEASE = LIST + "release/"
RECORDS = "/admin/redlock_django/forcedrelease/"


@pytest.fixture
def five(masters: list[LocalMaster], settings: Settings) -> list[LocalMaster]:
    """Five real masters, used by two aliases with different key prefixes."""
    shared = {"MASTERS": [master.url for master in masters], "RESTART_DELAY": 0}
    settings.REDLOCK = {"payments": {**shared, "KEY_PREFIX": "payments"}, "default": shared}
    return masters


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Return a function that logs in a staff user with the given permissions."""

    def logged_in(*codenames: str, **options: bool) -> Client:
        user = User.objects.create_user("-".join(["staff", *codenames]), is_staff=True)
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
    return staff("view_heldlock", "release_heldlock", "view_forcedrelease")
