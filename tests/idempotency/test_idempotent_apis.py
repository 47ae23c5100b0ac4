"""@idempotent in Django REST framework: after authentication, permissions and throttles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from django.urls import include, path
from pytest_django import Settings
from rest_framework import parsers, renderers
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action
from rest_framework.permissions import BasePermission, IsAdminUser, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet, ViewSet

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin, object_permissions
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.app.conftest import MEMORY
from tests.idempotency.conftest import KEY, Site, orders

pytestmark = pytest.mark.django_db(transaction=True)
forbidden: set[int] = set()


class ByToken(BaseAuthentication):
    """A user with two tokens, as after a renewal."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        token = request.headers.get("Authorization", "")
        return (User(pk=len(token.split("-")[0])), None) if token else None


class NotForbidden(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        request.data  # noqa: B018 - reads the body before any other code does
        return bool(request.user.pk) and request.user.pk not in forbidden


class Base(LockAPIMixin, APIView):
    authentication_classes = (ByToken,)
    permission_classes = (NotForbidden,)
    parser_classes: tuple[Any, ...] = (
        parsers.JSONParser,
        parsers.MultiPartParser,
        parsers.FormParser,
    )


class Orders(Base):
    @idempotent(required=True)
    def post(self, request: Request, **_: Any) -> Response:
        order = Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
        return Response({"order": order.number}, status=201)


class Actions(LockAPIMixin, ViewSet):
    authentication_classes = (ByToken,)

    @action(detail=True, methods=["post"])
    @idempotent
    @lock_resource("order:<int:pk>")
    def pay(self, request: Request, pk: str) -> Response:
        Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
        return Response({"order": Order.objects.count()})


class OwnersOnly(BasePermission):
    def has_object_permission(self, request: Request, view: APIView, obj: Order) -> bool:
        return request.user.pk not in forbidden


class OnObjects(LockAPIMixin, GenericViewSet):
    """Actions that ask for object permissions by get_object()."""

    authentication_classes = (ByToken,)
    permission_classes: tuple[Any, ...] = (OwnersOnly,)
    queryset = Order.objects.all()

    @action(detail=True, methods=["post"])
    @idempotent
    def pay(self, request: Request, pk: str) -> Response:
        order = self.get_object()
        Order.objects.filter(pk=pk).update(total=order.total + 1)
        return Response({"total": order.total + 1})

    @action(detail=True, methods=["post"])
    @idempotent(replay_check=object_permissions)
    def repay(self, request: Request, pk: str) -> Response:
        return self.pay.__wrapped__(self, request, pk)

    @action(detail=True, methods=["post"], permission_classes=[IsAuthenticated | IsAdminUser])
    @idempotent
    def touch(self, request: Request, pk: str) -> Response:
        return self.pay.__wrapped__(self, request, pk)

    @action(detail=True, methods=["put"])
    @idempotent(methods=["POST"])
    def change(self, request: Request, pk: str) -> Response:
        return Response({"number": self.get_object().number})


@pytest.fixture
def api(site: Site, urls: Callable[..., None], settings: Settings) -> Site:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    router = DefaultRouter()
    router.register("actions", Actions, basename="action")
    router.register("objects", OnObjects, basename="object")
    urls(
        path("orders/", Orders.as_view()),
        path("", include(router.urls)),
    )
    forbidden.clear()
    return Site(urls, Client(raise_request_exception=False), settings)


def post(api: Site, token: str = "ann-1", **options: Any) -> Any:
    return api.post(headers={"Authorization": token, **options.pop("headers", {})}, **options)


def test_a_renewed_token_is_the_same_user(api: Site) -> None:
    post(api, "ann-1")
    assert post(api, "ann-2")["Idempotent-Replayed"] == "true"
    assert post(api, "robert-1")["Idempotent-Replayed"] == "false"
    assert orders() == 2


def test_refusals_go_through_the_sites_own_handler(
    api: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(error: Any, context: Any) -> Response:
        return Response({"own": error.get_codes() if error.detail else None}, error.status_code)

    monkeypatch.setattr(Orders, "get_exception_handler", lambda self: own)
    assert post(api, key=None).json() == {"own": "idempotency-key-missing"}


def test_each_renderer_writes_a_refusal_in_its_format(
    api: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Text(renderers.BaseRenderer):
        media_type = "text/plain"
        format = "txt"

        def render(self, data: Any, *_: Any, **__: Any) -> bytes:
            return json.dumps(data).encode()

    monkeypatch.setattr(Orders, "renderer_classes", (Text,))
    refused = post(api, key=None)
    assert refused["Content-Type"].startswith("text/plain")
    assert json.loads(refused.content)["safe_new_key"] is True


class AnyBody(Base):
    """A permission class has read request.data; every parser returns what the client sent."""

    parser_classes = (*Base.parser_classes, parsers.FileUploadParser)

    @idempotent(methods=["POST", "PUT", "PATCH"])
    def post(self, request: Request, **_: Any) -> Response:
        data = {name: value for name, value in request.data.items() if isinstance(value, str)}
        files = {name: upload.read().decode() for name, upload in request.FILES.items()}
        return Response({**data, **files})

    put = patch = post


BODIES = {
    "json": ("application/json", b'{"a": "1"}', {"a": "1"}),
    "form": ("application/x-www-form-urlencoded", b"a=1", {"a": "1"}),
    "multipart": (
        MULTIPART_CONTENT,
        encode_multipart(BOUNDARY, {"a": "1", "f": SimpleUploadedFile("a.txt", b"x" * 70_000)}),
        {"a": "1", "f": "x" * 70_000},
    ),
    "stream": ("application/octet-stream", b"raw", {"file": "raw"}),
}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize("body", BODIES)
def test_a_permission_may_read_the_data(
    api: Site, urls: Callable[..., None], method: str, body: str
) -> None:
    urls(path("orders/", AnyBody.as_view()))
    content_type, content, expected = BODIES[body]
    headers = {
        "Authorization": "ann-1",
        "Idempotency-Key": KEY,
        "Content-Disposition": "attachment; filename=a.txt",
    }

    def send(content: bytes) -> Any:
        return api.client.generic(method, "/orders/", content, content_type, headers=headers)

    answers = [send(content) for _ in range(2)]
    assert [answer.json() for answer in answers] == [expected] * 2
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"]
    assert send(content.replace(b"1", b"2").replace(b"raw", b"war")).status_code == 422


def test_an_action(api: Site, happened: list[str]) -> None:
    happened.clear()
    assert post(api, url="/actions/7/pay/").json() == {"order": 1}
    assert happened == ["lock", "lock", "BEGIN", "guard", "COMMIT", "release", "release"]
    assert post(api, url="/actions/7/pay/").json() == {"order": 1}


@pytest.mark.attack
def test_a_replay_that_would_skip_object_permissions_is_an_error(api: Site) -> None:
    order = Order.objects.create(number="7", total=1)
    headers = {"Authorization": "ann-1"}
    for key in ({}, {"Idempotency-Key": KEY}):
        with pytest.raises(InvalidRedlock, match="OwnersOnly is checked inside of @idempotent"):
            Client().post(f"/objects/{order.pk}/pay/", headers={**headers, **key})
    order.refresh_from_db()
    assert (order.total, IdempotencyRecord.objects.count()) == (1, 0)
    # Permissions without a check for objects, and a method that is never replayed.
    assert post(api, url=f"/objects/{order.pk}/touch/").json() == {"total": 2}
    assert api.client.put(f"/objects/{order.pk}/change/", headers=headers).status_code == 200


def test_a_replay_needs_the_object_permission(api: Site) -> None:
    order = Order.objects.create(number="7", total=1)
    answers = [post(api, url=f"/objects/{order.pk}/repay/") for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"total": 2}] * 2
    assert answers[1]["Idempotent-Replayed"] == "true"
    forbidden.add(len("ann"))
    refused = post(api, url=f"/objects/{order.pk}/repay/")
    assert (refused.status_code, b"total" in refused.content) == (403, False)
    forbidden.clear()
    Order.objects.all().delete()
    assert post(api, url=f"/objects/{order.pk}/repay/").status_code == 404


@pytest.mark.parametrize("by_rule", [False, True])
@pytest.mark.parametrize(
    "view", [lambda: Orders.as_view(), lambda: Actions.as_view({"post": "pay"})]
)
def test_a_lock_around_a_class_with_idempotent_handlers_is_refused(
    api: Site, urls: Callable[..., None], view: Callable[[], Any], by_rule: bool
) -> None:
    if by_rule:
        rules = [{"view": "pay", "key": "shop"}]
        api.settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": rules}}
    served = view() if by_rule else lock_resource("shop")(view())
    urls(path("", served, name="pay"))
    for headers in ({}, {"Idempotency-Key": KEY}):
        with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
            Client().post("/", headers={"Authorization": "ann-1", **headers})


def test_a_view_set_without_idempotent_actions_may_be_locked(api: Site) -> None:
    assert lock_resource("shop")(OnObjects.as_view({"get": "list"})).lock_options


class Everything(Base):
    """A view whose handler gets the request of REST framework."""

    requests: ClassVar[list[Any]] = []

    @idempotent
    def post(self, request: Request) -> Response:
        self.requests.append(request)
        return Response({"active": request.idempotency.active, "body": request.data})


def test_a_handler_sees_its_idempotency(api: Site, urls: Callable[..., None]) -> None:
    urls(path("orders/", Everything.as_view()))
    assert post(api, data={"a": 1}).json() == {"active": True, "body": {"a": 1}}
    assert isinstance(Everything.requests[0]._request, HttpRequest)
    assert post(api, key=None).json()["active"] is False
