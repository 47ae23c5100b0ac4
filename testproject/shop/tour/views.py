"""The pages of the tour. A button is a form: it makes something happen, then redirects to its page.

The pages work without JavaScript; `tour.js` only refreshes the picture of the masters.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from django.views.static import serve

from testproject.shop.serving import Shopper
from testproject.shop.tour.demo_masters import DemoMasters, running_demo
from testproject.shop.tour.picture import picture
from testproject.shop.tour.run import Run
from testproject.shop.tour.steps import STEPS, Step
from testproject.shop.views import visitor

DEMO_USER = "demo"
"""The name and the password of the superuser that `manage.py demo` creates in its database."""

_NUMBERS = {step.slug: number for number, step in enumerate(STEPS)}


@require_GET
@ensure_csrf_cookie
def start(request: HttpRequest) -> HttpResponse:
    """List the steps."""
    visitor(request)
    return render(request, "shop/start.html", {"steps": STEPS, "demo": running_demo()})


# Not in a transaction: the payments of a step are requests of their own, and SQLite has one writer.
@transaction.non_atomic_requests
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def step(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a step; on POST, run it and redirect to its page with the outcome."""
    if slug not in _NUMBERS:
        raise Http404(f"the tour has no step {slug!r}")
    number, demo = _NUMBERS[slug], running_demo()
    shown = STEPS[number]
    if request.method == "POST":
        request.session[f"tour-{slug}"] = _outcome(request, shown, _required(demo))
        return redirect(f"{request.path}#outcome")
    outcome = request.session.get(f"tour-{slug}", {})
    resource = outcome.get("resource", "")
    context = {
        "step": shown,
        "number": number + 1,
        "steps": STEPS,
        "previous": STEPS[number - 1] if number else None,
        "next": STEPS[number + 1] if number + 1 < len(STEPS) else None,
        "demo": demo,
        "now": picture(demo.masters, resource) if demo else None,
        "outcome": outcome,
        "can_log_in": settings.DEBUG,
        "zone": settings.TIME_ZONE,
    }
    return render(request, "shop/step.html", context)


def _outcome(request: HttpRequest, shown: Step, demo: DemoMasters) -> dict[str, Any]:
    with demo.step(lasts=shown.lasts):
        run = Run(demo, Shopper(f"http://127.0.0.1:{request.META['SERVER_PORT']}/"))
        with run.watched():
            shown.run(run)
    return run.outcome()


@transaction.non_atomic_requests
@never_cache
@require_GET
def masters(request: HttpRequest) -> HttpResponse:
    """Show the masters as they are now, without the rest of a page; `resource` may be a lock."""
    now = picture(_required(running_demo()).masters, request.GET.get("resource", ""))
    return render(request, "shop/picture.html", {"picture": now})


@transaction.non_atomic_requests
@require_POST
def repair(request: HttpRequest) -> HttpResponse:
    """Make all masters run again at once."""
    with _required(running_demo()).step():
        pass  # they are repaired whenever a step begins
    slug = request.POST.get("step", "")
    return redirect("shop:step", slug) if slug in _NUMBERS else redirect("shop:start")


@transaction.non_atomic_requests
@require_POST
def log_in(request: HttpRequest) -> HttpResponse:
    """Log in as the superuser of the demo, and open the admin. Never do this in a real site."""
    _required(running_demo())
    if not settings.DEBUG:
        raise Http404("only with DEBUG")
    if not request.user.is_authenticated:
        login(request, get_user_model().objects.get_by_natural_key(DEMO_USER))
    return redirect("admin:redlock_django_heldlock_changelist")


@require_GET
def document(request: HttpRequest, name: str) -> HttpResponseBase:
    """Show a document of the repository as the text that it is."""
    answer = serve(request, f"{name}.md", document_root=f"{settings.BASE_DIR}/docs")
    answer["Content-Type"] = "text/plain; charset=utf-8"
    return answer


def _required(demo: DemoMasters | None) -> DemoMasters:
    if demo is None:
        raise Http404("the masters of the tour are started by: python manage.py demo")
    return demo
