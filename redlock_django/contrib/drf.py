"""Django REST framework: acquire locks after authentication and raise errors as APIException."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import classonlymethod

from redlock_django.exceptions import InvalidRedlock, RedlockError
from redlock_django.locking.caller import open_blocks
from redlock_django.web.answers import (
    has_problem,
    judge_effects,
    problem_of,
    retry_after,
    was_rolled_back_by_django,
)
from redlock_django.web.locked_view import locked_view
from redlock_django.web.options import no_lock
from redlock_django.web.request import RequestState
from redlock_django.web.view_kinds import (
    opens_transaction,
    records_requests,
    transaction_marker,
    view_name,
)

try:
    from rest_framework import views
    from rest_framework.exceptions import APIException
    from rest_framework.permissions import BasePermission
    from rest_framework.request import Request
    from rest_framework.response import Response
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.drf needs Django REST framework 3.15: "
        "pip install 'redlock-django[drf]'"
    ) from error

if TYPE_CHECKING:
    from rest_framework.views import APIView
else:
    APIView = object


class LockAPIException(APIException):
    """A lock error as a REST framework exception with `status_code`, `detail` and `wait`.

    `__cause__` is the lock error. `wait` is the value of `Retry-After` in whole seconds, or None.
    `detail` is the whole problem document, with the message as its member `detail`.
    """

    def __init__(self, error: RedlockError, *, status: int | None = None) -> None:
        problem = problem_of(error, status=status)
        super().__init__(problem["detail"], problem["code"])
        self.status_code = problem["status"]
        # Set after APIException.__init__, which converts every value to a string.
        self.detail = problem
        self.wait = retry_after(error)
        self.__cause__ = error

    def __str__(self) -> str:
        return str(self.detail["detail"])

    def get_codes(self) -> str:
        """Return the code, such as "resource-locked"."""
        return str(self.detail["code"])

    def get_full_details(self) -> dict[str, Any]:
        """Return the whole problem document."""
        return self.detail


def as_api_exception(error: Exception, *, status: int | None = None) -> Exception:
    """Return a LockAPIException for a lock error, and any other error unchanged.

    `status` is the HTTP status for a held lock; the default is 423. Call it in the first line of
    a custom `EXCEPTION_HANDLER`.
    """
    return LockAPIException(error, status=status) if has_problem(error) else error


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Handle lock errors, then everything that REST framework's default handler handles."""
    request = context.get("request")
    if request is not None:
        judge_effects(error, request, undone=was_rolled_back_by_django(request, error))
    return views.exception_handler(as_api_exception(error), context)


def object_permissions(request: Request, **_: Any) -> bool:
    """Return True if the user may access the object of the URL; for `replay_check`.

    It calls `get_object()` of the view, which raises NotFound or PermissionDenied: an object that
    was deleted since, or that this user no longer sees, is answered 404, and no replay is sent.
    """
    request.parser_context["view"].get_object()
    return True


def _checks_objects(permission: Any) -> bool:
    """Return whether a permission has a check of its own for objects."""
    # The operands of &, | and ~.
    operands = [getattr(permission, name) for name in ("op1", "op2") if hasattr(permission, name)]
    if operands:
        return any(map(_checks_objects, operands))
    own = type(permission).has_object_permission
    return own is not BasePermission.has_object_permission


def _object_check_error(handler: Any, permission: Any) -> InvalidRedlock:
    return InvalidRedlock(
        f"{view_name(handler)}: the object permission {type(permission).__name__} is checked "
        "inside of @idempotent, so a replay would be sent to a user who no longer has the "
        "permission. Write @idempotent(replay_check=object_permissions), from "
        "redlock_django.contrib.drf, or another replay_check="
    )


class LockAPIMixin(APIView):
    """Mixin for an APIView or ViewSet whose handlers are locked.

    The order is: authentication, lock, BEGIN, handler, render, COMMIT, release. List the mixin
    first among the base classes, and decorate handler methods and actions with `@lock_resource`.
    Under ATOMIC_REQUESTS every handler runs in a transaction that begins after authentication,
    permissions and throttles, and after the lock if there is one. Lock errors are passed to the
    project's EXCEPTION_HANDLER as LockAPIException.
    """

    _problem: HttpResponseBase | None = None
    """The answer to a lock error, if there is one."""

    @classonlymethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function. It opens no transaction: the handlers do."""
        view: Any = super().as_view(*args, **initkwargs)
        view._non_atomic_requests = transaction_marker(view)
        return view

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Wrap a handler without a lock in a transaction; a locked handler opens its own."""
        if (options := self._idempotent_options(request)) is not None:
            # Authentication and permissions may read request.data, whose parsers read a stream.
            options.read_body(request._request)
        super().initial(request, *args, **kwargs)
        name = str(request.method).lower()
        # A client may send any word as a method, such as the name of another attribute.
        handler = getattr(self, name, None) if name in self.http_method_names else None
        if handler is not None and not (opens_transaction(handler) or records_requests(handler)):
            setattr(self, name, locked_view(handler, no_lock("default")))

    def check_object_permissions(self, request: Request, obj: Any) -> None:
        """Check the permissions for an object, as REST framework does.

        Raises InvalidRedlock in an idempotent handler without `replay_check`: a replay does not run
        the handler, so it would be sent to a user who no longer has the permission.
        """
        handler = getattr(self, str(request.method).lower(), None)
        options = self._idempotent_options(request)
        if options is not None and RequestState.of(request).recording:
            settings = options.settings()
            if request.method in settings.methods and options.replay_check is None:
                for permission in self.get_permissions():
                    if _checks_objects(permission):
                        raise _object_check_error(handler, permission)
        super().check_object_permissions(request, obj)

    def _idempotent_options(self, request: Request) -> Any:
        """Return the options of the handler's `@idempotent`, or None."""
        handler = getattr(self, str(request.method).lower(), None)
        return getattr(handler, "idempotent_options", None)

    def handle_exception(self, error: Exception) -> HttpResponseBase:
        """Return the response for an error, also for a lock error raised in a handler."""
        # The handler's own transaction has been rolled back. REST framework would also mark the
        # block around a user's test for rollback, so its marks are restored.
        real = open_blocks()
        tests = [c for c in connections.all(initialized_only=True) if c.in_atomic_block]
        marks = [(c, c.get_rollback()) for c in tests if c not in real]
        judge_effects(error, self.request, undone=False)
        error = as_api_exception(error)
        try:
            response: HttpResponseBase = super().handle_exception(error)
        finally:
            for connection, mark in marks:
                connection.set_rollback(mark)
        if isinstance(error, LockAPIException):
            response["Cache-Control"] = "no-store"
            self._problem = response
        return response

    def finalize_response(
        self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Return the response with its renderer; the answer to a lock error in JSON is a problem.

        Its renderer is not known before: reading the body fails before the client's formats are.
        """
        done: HttpResponseBase = super().finalize_response(request, response, *args, **kwargs)
        renderer = getattr(done, "accepted_renderer", None)
        if done is self._problem and getattr(renderer, "format", "") == "json":
            done.content_type = "application/problem+json"  # type: ignore[attr-defined]
        return done

    def answer_lock_error(
        self, request: HttpRequest, error: RedlockError, *, status: int | None = None
    ) -> HttpResponseBase:
        """Return the response for a lock that could not be acquired for a handler."""
        return self.handle_exception(as_api_exception(error, status=status))

    def finish_under_lock(self, request: Request, response: HttpResponseBase) -> HttpResponseBase:
        """Finalize and render a handler's response before its transaction is committed."""
        finalize = self.finalize_response
        done: HttpResponseBase = finalize(request, response, *self.args, **self.kwargs)
        if callable(render := getattr(done, "render", None)):
            render()

        def finalize_once(
            request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any
        ) -> Any:
            # dispatch() finalizes again; it passes another response if the lock was lost since.
            return response if response is done else finalize(request, response, *args, **kwargs)

        self.__dict__["finalize_response"] = finalize_once
        return done
