"""Make the pictures of documents: `uv run python -m tests.browser.picture [NAME ...]`.

The names are `admin`, `edit`, `tour` and `diagrams`, which fetches Mermaid with npm.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from playwright.sync_api import Playwright, sync_playwright

from redlock_django.testing.masters import LocalMaster, local_masters
from redlock_django.testing.processes import ProcessGroup
from tests.browser.conftest import Visitor, launch, serving
from tests.operate.planted import plant
from tests.pages import ROOT

PICTURE = ROOT / "docs/images/held-locks.png"
TOUR_PICTURE = ROOT / "docs/images/tour.png"
WARNING_PICTURE = ROOT / "docs/images/edit-warning.png"
CONFLICT_PICTURE = ROOT / "docs/images/edit-conflict.png"
MERMAID = "mermaid@11.17.2"
# On a page that may be dark, and in its own size.
RENDER = """async ([name, text]) => {
    document.body.innerHTML = (await mermaid.render(name, text)).svg
    const drawn = document.body.firstElementChild
    drawn.style.background = "white"
    drawn.setAttribute("width", Math.ceil(drawn.viewBox.baseVal.width))
    return new XMLSerializer().serializeToString(drawn)
}"""
SIZE = {"width": 1000, "height": 1000}


def scene(masters: list[LocalMaster]) -> None:
    """Plant twelve locks of several holders, and stop one of the masters."""
    for number in range(6):
        plant(
            masters,
            f"order:{1000 + number}",
            token=f"{number:x}",
            ttl=40 + number,
            path=f"/orders/{1000 + number}/pay/",
            user=str(7 + number),
        )
    for slot, resource in enumerate(("export", "export[1]")):
        token = "67"[slot]
        plant(masters, resource, token=token, ttl=50, host="worker1", path="", user="", limit=3)
    plant(masters, "invoice:2026-11", token="c", ttl=35, host="web2", path="/invoices/")
    plant(masters, "user:17", token="d", ttl=30, host="web2", path="/profile/", user="17")
    plant(masters, "stock:42", token="e", ttl=55, host="web2", path="/stock/42/", user="3")
    plant(masters, "nightly-report", token="f", ttl=300, host="worker1", path="", user="")
    with masters[0].client() as client:
        client.zadd("redlock:queue:user:17", {"web1 1": 1, "web1 2": 2})
    masters[2].kill()


def admin_pictures(playwright: Playwright) -> None:
    """Save the admin's list of held locks."""
    chromium = playwright.chromium
    with local_masters(5) as masters, serving(masters) as site, launch(chromium) as browser:
        scene(masters)
        page = Visitor(browser, site).open(viewport=SIZE)
        page.locator("#toggle-nav-sidebar").click()
        page.wait_for_timeout(200)  # new masters are trusted soon after the first look at them
        page.reload()
        page.screenshot(path=PICTURE, animations="disabled", full_page=True)


def edit_pictures(playwright: Playwright) -> None:
    """Save what two editors of one order see: who has it open, and whose save came first."""
    chromium = playwright.chromium
    size = {"width": 900, "height": 620}
    with local_masters(5) as masters, serving(masters) as site, launch(chromium) as browser:
        visitor = Visitor(browser, site)
        order = "/admin/shop/order/1/change/"
        hers = visitor.open(order, user="anna", viewport=size)
        hers.wait_for_timeout(500)  # new masters are trusted soon after the first look at them
        hers.reload()
        hers.wait_for_timeout(500)
        his = visitor.open(order, user="bob", viewport=size)
        for page in (hers, his):
            page.locator("#toggle-nav-sidebar").click()
        his.get_by_text("has had this open").wait_for()
        his.wait_for_timeout(500)
        his.screenshot(path=WARNING_PICTURE, animations="disabled")
        his.fill("[name=total]", "2000")
        his.locator("[name=_save]").click()
        his.wait_for_url("**/shop/order/")
        hers.fill("[name=total]", "1500")
        hers.locator("[name=_save]").click()
        hers.locator(".errorlist.nonfield").wait_for()
        hers.screenshot(path=CONFLICT_PICTURE, animations="disabled")


def tour_picture(playwright: Playwright) -> None:
    """Save the page of the tour on which a master is killed."""
    command = [sys.executable, "manage.py", "demo", "--tour"]
    with ProcessGroup("redlock-tour-") as processes, launch(playwright.chromium) as browser:
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


def diagrams(playwright: Playwright) -> None:
    """Save the diagrams of all documents, and delete those that are in none any more."""
    pictures = diagrams_of_documents()
    for picture in PICTURE.parent.glob("diagram-*.svg"):
        if picture not in pictures:
            picture.unlink()
    with tempfile.TemporaryDirectory() as folder, launch(playwright.chromium) as browser:
        fetch = ["npm", "pack", "--silent", MERMAID]
        packed = subprocess.run(fetch, cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(f"{folder}/{packed.stdout.strip()}") as package:
            package.extract("package/dist/mermaid.min.js", folder, filter="data")
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.set_content("<body></body>")
        page.add_script_tag(path=f"{folder}/package/dist/mermaid.min.js")
        page.evaluate("mermaid.initialize({startOnLoad: false, theme: 'neutral'})")
        for picture, text in pictures.items():
            picture.write_text(page.evaluate(RENDER, [picture.stem, text]) + "\n")


def diagrams_of_documents() -> dict[Path, str]:
    """Return the text of each diagram of docs/, by its picture (which docs/conf.py names too)."""
    return {
        PICTURE.parent / f"diagram-{hashlib.sha256(text.encode()).hexdigest()[:8]}.svg": text
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for text in re.findall(r"```mermaid\n(.*?)```\n", page.read_text(), re.DOTALL)
    }


def main() -> None:
    """Save the pictures that are asked for by name, by default all."""
    PICTURE.parent.mkdir(exist_ok=True)
    pictures = {
        "admin": admin_pictures,
        "edit": edit_pictures,
        "tour": tour_picture,
        "diagrams": diagrams,
    }
    with sync_playwright() as playwright:
        for name in sys.argv[1:] or pictures:
            pictures[name](playwright)


if __name__ == "__main__":
    main()
