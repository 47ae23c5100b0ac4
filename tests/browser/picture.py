"""Make the pictures of documents: `uv run python -m tests.browser.picture`."""

from __future__ import annotations

from playwright.sync_api import sync_playwright

from redlock_django.testing.masters import LocalMaster, local_masters
from tests.browser.conftest import CONTENTION, ROOT, Visitor, launch, serving
from tests.operate.planted import plant

PICTURE = ROOT / "docs/images/held-locks.png"
CONTENTION_PICTURE = ROOT / "docs/images/contention.png"
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


def main() -> None:
    """Save the admin's list of held locks and its contention page as a real browser shows them."""
    PICTURE.parent.mkdir(exist_ok=True)
    with local_masters(5) as masters, serving(masters) as site, sync_playwright() as playwright:
        scene(masters)
        with launch(playwright) as browser:
            page = Visitor(browser, site).open(viewport=SIZE)
            page.locator("#toggle-nav-sidebar").click()
            page.wait_for_timeout(200)  # new masters are trusted soon after the first look at them
            page.reload()
            page.screenshot(path=PICTURE, animations="disabled")
            page.goto(CONTENTION)
            page.set_viewport_size({"width": 1000, "height": 530})
            page.screenshot(path=CONTENTION_PICTURE, animations="disabled")


if __name__ == "__main__":
    main()
