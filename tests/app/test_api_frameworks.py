"""Django REST framework and django-ninja: order of checks, commits, and answers to errors."""

from __future__ import annotations

from typing import Any

import ninja
import pytest
import rest_framework.views
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import HttpRequest
from django.test import Client, TestCase
from django.urls import include, path
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework import exceptions, renderers, serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet, ViewSet

from redlock_django import QuorumUnreachable, ResourceLocked, idempotent, lock, lock_resource
from redlock_django.contrib.drf import LockAPIMixin, as_api_exception, exception_handler
from redlock_django.exceptions import InvalidRedlock
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app import ninja_annotations
from tests.app.conftest import Urls
from tests.inspecting import is_free
from tests.views import kinds

WRITES = pytest.mark.django_db(transaction=True)
locked = lock_resource("order:<int:pk>")
by_anyone = idempotent(anonymous_scope=lambda request, **_: "all")
pytestmark = pytest.mark.django_db
seen: list[str] = []


def note(what: str) -> None:
    """Record an event, whether the order's lock was held, and whether a transaction was open."""
    state = "free" if is_free("order:7") else "locked"
    seen.append(f"{what}: {state}{', in a block' if connection.in_atomic_block else ''}")


class ByHeader(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[User, None] | None:
        note("authentication")
        name = request.headers.get("X-User")
        return (User(pk=len(name), username=name), None) if name else None


class Throttle(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        note("throttle")
        return True


class Shown(renderers.JSONRenderer):
    def render(self, *args: Any, **kwargs: Any) -> bytes:
        note("render")
        return bytes(super().render(*args, **kwargs))


class Pay(LockAPIMixin, APIView):
    authentication_classes = (ByHeader,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (Throttle,)
    renderer_classes = (Shown,)

    @lock_resource("order:<int:pk>", methods=["POST"])
    def post(self, request: Request, pk: str) -> Response:
        note("handler")
        Order.objects.create(number=pk, total=1)
        return Response({"paid": pk})

    def get(self, request: Request, pk: str) -> Response:
        note("handler")
        Order.objects.create(number=pk, total=1)
        if "fail" in request.GET:
            raise exceptions.NotFound
        return Response({})


class ByUser(LockAPIMixin, APIView):
    authentication_classes = (ByHeader,)

    @lock_resource("user:<user.pk>", status=409)
    def post(self, request: Request) -> Response:
        return Response({"locked": not is_free("user:3")})


class OrderSerializer(serializers.ModelSerializer):
    class Meta:
        model = Order
        fields = ("number", "total")


class Orders(LockAPIMixin, ModelViewSet):
    authentication_classes: tuple[Any, ...] = ()
    queryset = Order.objects.all()
    serializer_class = OrderSerializer

    @action(detail=True, methods=["post"])
    @locked
    def pay(self, request: Request, pk: str) -> Response:
        note("action")
        return Response({"action": self.action, "order": self.get_object().number})


class Plain(ViewSet):
    """Without the mixin: REST framework's dispatch runs in Django's transaction."""

    authentication_classes: tuple[Any, ...] = ()

    @action(detail=True, methods=["post"])
    def body(self, request: Request, pk: str) -> Response:
        with lock("other"):
            return Response({})


@api_view(["POST"])
def function(request: Request, pk: str) -> Response:
    with lock("other"):
        return Response({})


router = DefaultRouter()
router.register("orders", Orders)
router.register("plain", Plain, basename="plain")
urlpatterns = [
    path("pay/<pk>/", Pay.as_view()),
    path("by-user/", ByUser.as_view()),
    path("function/<pk>/", function),
    path("excluded/<pk>/", transaction.non_atomic_requests(Pay.as_view())),
    path("", include(router.urls)),
]


@pytest.fixture(autouse=True)
def _site(lock_middleware: None, settings: Settings) -> None:
    settings.ROOT_URLCONF = __name__
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    seen.clear()


@pytest.fixture
def client() -> Client:
    return Client(headers={"X-User": "Ann"})


@WRITES
def test_authentication_then_lock_then_transaction(client: Client) -> None:
    response = client.post("/pay/07/")
    assert response.json() == {"paid": "07"}
    assert seen == [
        "authentication: free",
        "throttle: free",
        "handler: locked, in a block",
        "render: locked, in a block",
    ]
    assert is_free("order:7")
    assert Order.objects.count() == 1
    assert response["Allow"] == "GET, POST, HEAD, OPTIONS"


@WRITES
def test_an_unknown_client_acquires_no_lock() -> None:
    with held_elsewhere("order:7"):
        assert Client().post("/pay/7/").status_code == 403
    assert seen == ["authentication: locked", "render: locked"]


@WRITES
def test_a_handler_without_a_lock_has_its_transaction(client: Client) -> None:
    client.get("/pay/7/")
    assert seen[2] == "handler: free, in a block"
    assert client.get("/pay/8/?fail").status_code == 404
    assert Order.objects.count() == 1
    assert client.options("/pay/7/").status_code == 200
    assert client.put("/pay/7/").status_code == 405


@pytest.mark.attack
@pytest.mark.parametrize("method", ["HANDLE_EXCEPTION", "FINALIZE_RESPONSE", "HEADERS", "TRACE"])
def test_a_method_is_no_name_of_an_attribute(client: Client, method: str) -> None:
    assert client.generic(method, "/pay/7/").status_code == 405


@WRITES
def test_an_excluded_handler_without_a_lock_has_no_transaction(client: Client) -> None:
    client.get("/excluded/7/")
    assert seen[2] == "handler: free"


@WRITES
def test_a_conflict_is_answered_as_rest_framework_answers_errors(client: Client) -> None:
    with held_elsewhere("order:7"):
        response = client.post("/pay/7/")
    assert response.status_code == 423
    assert response["Content-Type"] == "application/problem+json"
    assert response["Cache-Control"] == "no-store"
    assert response.json() == {
        "type": "urn:redlock-django:resource-locked",
        "title": "Resource is locked",
        "status": 423,
        "detail": "Another request is using this resource.",
        "code": "resource-locked",
        "retryable": True,
    }
    assert 1 <= int(response["Retry-After"]) <= 60
    assert response["Allow"]
    assert "handler: locked, in a block" not in seen
    response = client.post("/pay/seven/")
    assert (response.status_code, response.json()["code"]) == (400, "bad-resource")
    assert "Retry-After" not in response


@WRITES
def test_the_key_knows_the_user_and_the_decorator_its_status(client: Client) -> None:
    assert client.post("/by-user/").json() == {"locked": True}
    with held_elsewhere("user:3"):
        assert client.post("/by-user/").status_code == 409


@WRITES
def test_the_projects_own_exception_handler(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(error: Exception, context: dict[str, Any]) -> Response:
        assert isinstance(error, exceptions.APIException)
        assert isinstance(error.__cause__, ResourceLocked)
        return Response({"code": error.get_codes()}, status=error.status_code)

    monkeypatch.setattr(Pay.settings, "EXCEPTION_HANDLER", own)
    with held_elsewhere("order:7"):
        response = client.post("/pay/7/")
    assert (response.status_code, response.json()) == (423, {"code": "resource-locked"})


@WRITES
def test_an_action_of_a_view_set(client: Client) -> None:
    order = Order.objects.create(pk=7, number="A-7", total=1)
    response = client.post("/orders/07/pay/")
    assert response.json() == {"action": "pay", "order": order.number}
    assert seen == ["action: locked, in a block"]
    with held_elsewhere("order:7"):
        assert client.post("/orders/7/pay/").status_code == 423
        assert client.get("/orders/7/").status_code == 200
    page = client.post("/orders/7/pay/", headers={"Accept": "text/html"})
    assert page["Content-Type"].startswith("text/html")
    assert client.post("/orders/", {"number": "A-8", "total": 1}).status_code == 201


@WRITES
def test_the_exception_handler_alone_answers_errors_of_bodies(
    client: Client, monkeypatch: pytest.MonkeyPatch, sees_commits: None
) -> None:
    with held_elsewhere("other"):
        assert client.post("/plain/7/body/").json()["code"] == "resource-locked"
        monkeypatch.setattr(Plain.settings, "EXCEPTION_HANDLER", exception_handler)
        response = client.post("/plain/7/body/")
        assert response.json()["code"] == "resource-locked"
        assert client.post("/function/7/").status_code == 423
    assert response["Retry-After"]


def test_other_errors_are_unchanged() -> None:
    error = ValueError("mine")
    assert as_api_exception(error) is error
    unreachable = as_api_exception(QuorumUnreachable("redis://secret@host is down"), status=409)
    assert isinstance(unreachable, exceptions.APIException)
    assert unreachable.status_code == 503
    assert "secret" not in str(unreachable.detail)
    assert unreachable.get_codes() == unreachable.get_full_details()["code"] == "lock-unavailable"
    assert str(unreachable) == unreachable.detail["detail"]
    assert rest_framework.views.exception_handler(unreachable, {})["Retry-After"] == "1"


class UsersTestCase(TestCase):
    """A user's tests of locked views need no set-up."""

    def test_errors_do_not_break_the_tests_transaction(self) -> None:
        for url, status in [("/pay/7/?fail", 404), ("/pay/seven/", 400), ("/pay/8/", 200)]:
            with self.subTest(url):
                client = Client(headers={"X-User": "Ann"})
                method = client.get if "fail" in url else client.post
                assert method(url).status_code == status
                Order.objects.count()
        assert Client().post("/pay/9/").status_code == 403
        assert Order.objects.count() == 1


# django-ninja.


def known(request: HttpRequest) -> str | None:
    return request.headers.get("X-User")


api = ninja.NinjaAPI(urls_namespace="locked", auth=known)


@api.post("/sync/{pk}/")
@locked
def pay(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@api.post("/async/{pk}/")
@locked
async def apay(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@api.post("/around/{pk}/")
@decorate_view(locked)
def around(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_user_is_authenticated_before_the_lock(urls: Urls, plain: None, kind: str) -> None:
    urls(path("", api.urls))
    ann = Client(headers={"X-User": "ann"})
    assert ann.post(f"/{kind}/07/").json() == {"paid": 7}
    with held_elsewhere("order:7"):
        assert Client().post(f"/{kind}/7/").status_code == 401
        assert ann.post(f"/{kind}/seven/").status_code == 422
        assert ann.post(f"/{kind}/7/").status_code == 423


@api.post("/dict/{pk}/")
@by_anyone
def later(request: HttpRequest, pk: int) -> dict[str, Any]:
    Order.objects.create(number=str(pk), total=1)
    return {"paid": pk}


@pytest.mark.parametrize("key", ["k-1", None])
def test_an_idempotent_function_that_returns_no_response_is_refused(
    urls: Urls, plain: None, key: str | None
) -> None:
    urls(path("", api.urls))
    headers = {"X-User": "ann"} | ({"Idempotency-Key": key} if key else {})
    with pytest.raises(InvalidRedlock, match=r"returned dict.*JsonResponse"):
        Client(headers=headers).post("/dict/7/")
    assert Order.objects.count() == 0


@pytest.mark.attack
def test_a_lock_around_the_authentication_is_refused(urls: Urls) -> None:
    urls(path("", api.urls))
    with pytest.raises(InvalidRedlock, match="directly on the function"):
        Client(headers={"X-User": "ann"}).post("/around/7/")


@pytest.mark.parametrize("view", [kinds.function, kinds.afunction])
@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        (locked, "function has two lock decorators.*Pass all templ"),
        # An async operation has no transaction, but the answer to a held lock would be recorded.
        (by_anyone, "function: @idempotent in @decorate_view begins a trans"),
    ],
)
def test_a_decorator_around_an_operation_that_has_a_lock_is_refused_at_import(
    view: Any, decorator: Any, message: str
) -> None:
    with pytest.raises(InvalidRedlock, match=message):
        kinds.operation(view, lambda own: decorate_view(decorator)(locked(own)))


@pytest.mark.parametrize("place", ninja_annotations.DECORATED)
def test_annotations_that_are_strings_are_found_in_the_module_of_the_view(
    urls: Urls, plain: None, place: str
) -> None:
    urls(path("", ninja_annotations.api.urls))
    data = {"order": "6fa459ea-ee8a-3ca4-894e-db77e160355e", "amount": 3}
    headers = {"Idempotency-Key": "k-1"}
    kind = "multipart/form-data" if place.endswith("form") else "application/json"
    form = {"data": data} if kind != "application/json" else {"data": data, "content_type": kind}
    for _ in range(2):
        answer = Client(headers=headers).post(f"/{place}/", **form)
        assert (answer.status_code, answer.json()) == (200, {"paid": 3})
