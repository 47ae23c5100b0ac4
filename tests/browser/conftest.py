"""Fixtures: a real browser, and a site with five real masters."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.testing.processes import ProcessGroup
from tests.browser.site import PASSWORD
from tests.pages import ROOT
from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, BrowserType, ConsoleMessage, Page

    from redlock_django.testing.masters import LocalMaster

SCREENSHOTS = ROOT / "screenshots"
TIMEOUT = 30_000  # ms for anything in a page, also on a busy machine
HELD = "/admin/redlock_django/heldlock/"


@contextlib.contextmanager
def serving(masters: list[LocalMaster], port: int = 0, **env: str) -> Iterator[str]:
    """Run the site and yield its address; stop it at the end of the block."""
    port = port or free_port()
    with ProcessGroup("redlock-browser-") as processes:
        log = processes.directory / "log"
        with log.open("wb") as out:
            process = processes.spawn(
                [sys.executable, "-m", "tests.browser.site", str(port)],
                cwd=ROOT,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "DJANGO_SETTINGS_MODULE": "tests.browser.site",
                    "REDLOCK_MASTERS": ",".join(master.url for master in masters),
                    "SHOP_DATABASE": str(processes.directory / "site.sqlite3"),
                    **env,
                },
            )
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/favicon.ico", timeout=60).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the site did not start: {log.read_text()}") from None
                time.sleep(0.05)
        yield address
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def site(five_masters: list[LocalMaster]) -> Iterator[str]:
    """The address of a site with Django's own admin and a strict Content-Security-Policy."""
    with serving(five_masters) as address:
        yield address


@contextlib.contextmanager
def launch(kind: BrowserType, *args: str) -> Iterator[Browser]:
    """Run a headless browser of this kind; skip the test if none is installed."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    # Chromium's sandbox does not work for root and in many containers.
    browser = kind.launch(
        executable_path=program,
        args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", *args],
    )
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless browser. Its scope is a module, because its event loop disturbs other tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, launch(playwright.chromium) as browser:
        yield browser


def log_in(page: Page, user: str) -> None:
    """Log in on the page that asks for it, which leads to the first page of the admin."""
    page.fill("[name=username]", user)
    page.fill("[name=password]", PASSWORD)
    page.click("[type=submit]")
    page.wait_for_url("**/admin/")


class Visitor:
    """Opens pages of a site as one of its users; `complaints` are the errors in their consoles."""

    def __init__(self, browser: Browser, site: str) -> None:
        self._browser = browser
        self._site = site
        self._logins: dict[tuple[str, str], Any] = {}
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def open(
        self, path: str = HELD, *, user: str = "operator", on: str = "", **options: Any
    ) -> Page:
        """Open a page, without a login if `user` is ""; `options` are for the browser context."""
        from playwright.sync_api import expect

        expect.set_options(timeout=TIMEOUT)
        site = on or self._site
        context = self._browser.new_context(
            base_url=site,
            storage_state=self._logins.get((site, user)),
            **{"viewport": {"width": 1280, "height": 900}, **options},
        )
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        page = context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        if user and (site, user) not in self._logins:
            page.goto("/admin/login/?next=/admin/")
            log_in(page, user)
            self._logins[site, user] = context.storage_state()
        page.goto(path)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def leave(self) -> None:
        """Close every page."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()


@pytest.fixture(scope="module")
def _visitor(chromium: Browser, site: str) -> Visitor:
    return Visitor(chromium, site)


@pytest.fixture
def visitor(_visitor: Visitor) -> Iterator[Visitor]:
    """A user with a browser. Fails if there were errors in the console."""
    _visitor.complaints.clear()
    yield _visitor
    _visitor.leave()
    assert _visitor.complaints == []


def shoot(page: Page, name: str) -> None:
    """Save a screenshot for a human to look at, if the environment variable SCREENSHOTS is set."""
    if "SCREENSHOTS" in os.environ:
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def overflowing(page: Page) -> list[str]:
    """Return the elements that are wider than the window or cut off at its side."""
    found: list[str] = page.evaluate(
        """async () => {
            // A window that was resized just now has the new layout in the second frame.
            const frame = () => new Promise((done) => requestAnimationFrame(done));
            await frame(), await frame();
            const wide = document.documentElement.clientWidth + 1;
            const out = Array.from(document.querySelectorAll("#content *")).filter((element) => {
                const box = element.getBoundingClientRect();
                const hidden = getComputedStyle(element).clipPath !== "none"
                    || element.closest("thead");
                return box.width > 1 && !hidden && (box.right > wide || box.left < -1);
            }).map((element) => {
                const box = element.getBoundingClientRect();
                const where = `${element.tagName} from ${box.left} to ${box.right} of ${wide}`;
                return `${where}: ${element.textContent.trim()}`;
            });
            if (document.documentElement.scrollWidth > wide) out.push("the page scrolls sideways");
            return out;
        }"""
    )
    return found


def violations(page: Page, within: str = ".redlock") -> list[str]:
    """Return what axe-core finds on a page, by default without what Django's templates contain."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    results = axe.Axe().run(page, within).response["violations"]
    return [f"{r['id']}: {node['html']}" for r in results for node in r["nodes"]]
