"""Make the pictures of documents: `uv run python -m tests.browser.picture [admin] [tour]`."""

from __future__ import annotations

import re
import subprocess
import sys

from playwright.sync_api import Playwright, sync_playwright

from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.testing.processes import ProcessGroup
from tests.browser.conftest import CONTENTION, ROOT, Visitor, launch, serving
from tests.operate.planted import plant

PICTURE = ROOT / "docs/images/held-locks.png"
CONTENTION_PICTURE = ROOT / "docs/images/contention.png"
TOUR_PICTURE = ROOT / "docs/images/tour.png"
SIZE = {"width": 1000, "height": 1000}


def scene(masters: list[LocalMaster]) -> None:
    """Plant locks of several holders, and let a minority of the masters fail."""
    for number in range(4):
        plant(
            masters,
            f"order:{1000 + number}",
            token=f"{number:x}",
            ttl=40 + number,
            path=f"/orders/{1000 + number}/pay/",
            user=str(7 + number),
        )
    plant(masters, "invoice:2026-11", token="c", ttl=35, host="web2", path="/invoices/")
    plant(masters, "user:17", token="d", ttl=30, host="worker1", path="")
    masters[2].kill()


def admin_pictures(playwright: Playwright) -> None:
    """Save the admin's list of held locks and its contention page."""
    with local_masters(5) as masters, serving(masters) as site, launch(playwright) as browser:
        scene(masters)
        page = Visitor(browser, site).open(viewport=SIZE)
        page.locator("#toggle-nav-sidebar").click()
        page.wait_for_timeout(200)  # new masters are trusted soon after the first look at them
        page.reload()
        page.screenshot(path=PICTURE, animations="disabled")
        page.goto(CONTENTION)
        page.set_viewport_size({"width": 1000, "height": 530})
        page.screenshot(path=CONTENTION_PICTURE, animations="disabled")


def tour_picture(playwright: Playwright) -> None:
    """Save the page of the tour on which a master is killed."""
    command = [sys.executable, "manage.py", "demo", "--tour"]
    with ProcessGroup("redlock-tour-") as processes, launch(playwright) as browser:
        demo = processes.spawn(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert demo.stdout is not None
        said = map(str, demo.stdout)
        site = next(found[1] for line in said if (found := re.search(r"at (http\S+)/", line)))
        page = Visitor(browser, site).open("/tour/master-down/", user="", viewport=SIZE)
        page.get_by_role("button", name="Kill a master").click()
        page.locator("#outcome").wait_for()
        box = page.locator("#outcome").bounding_box()
        assert box is not None
        height = page.evaluate("window.scrollY") + box["y"] + box["height"] + 16
        clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": height}
        page.screenshot(path=TOUR_PICTURE, full_page=True, clip=clip)  # type: ignore[arg-type]


def main() -> None:
    """Save the pictures that are asked for by name ("admin", "tour"), by default all."""
    PICTURE.parent.mkdir(exist_ok=True)
    pictures = {"admin": admin_pictures, "tour": tour_picture}
    with sync_playwright() as playwright:
        for name in sys.argv[1:] or pictures:
            pictures[name](playwright)


if __name__ == "__main__":
    main()
