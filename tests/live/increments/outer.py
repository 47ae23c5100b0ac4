"""A middleware that opens a transaction around everything, as django-reversion's does."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class TransactionMiddleware:
    """Only for sync code, so Django runs it in a thread, and async views inside it on a loop."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response, and commit."""
        with transaction.atomic():
            return self.get_response(request)
