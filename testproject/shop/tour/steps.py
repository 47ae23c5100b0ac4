"""The nine steps of the tour: what the button of each page does.

The sentences of each page are in `templates/shop/steps/`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from redlock_django import Lock, LockLost, lock
from redlock_django.exceptions import StoreUnavailable
from redlock_django.operate.forced_release import ReleaseOutcome, force_release
from testproject.shop.tour.demo_masters import PATIENCE
from testproject.shop.tour.editors import Editor
from testproject.shop.tour.run import new_order
from testproject.shop.views import REPORTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from testproject.shop.tour.run import Run


def pay_twice(run: Run) -> None:
    """Send two payments of one order at the same moment."""
    run.pay_twice_at_once()


def double_click(run: Run) -> None:
    """Send one form twice at the same moment, with the key that is hidden in it."""
    run.pay_twice_at_once(key=str(uuid4()))


def retry_with_a_key(run: Run) -> None:
    """Send a payment with a key, and send it again."""
    key = str(uuid4())
    run.pay("The first request", key=key)
    run.pay("The same request again", key=key)


def three_at_once(run: Run) -> None:
    """Send five requests at the same moment for reports, of which three may be made at once."""
    run.make_reports(5, limit=REPORTS)


def lost_lock(run: Run) -> None:
    """Make three masters hang while a payment runs, until its lock is lost; then pay again."""
    run.caption = "The slow payment holds the lock"
    run.after_acquired.append(run.demo.hang_three)
    with run.slow_payment("The slow payment"):
        run.lost.wait()
        run.take("Its lock cannot be renewed, and is lost")
        run.demo.repair()
        run.caption = "The second payment holds the lock"
        run.pay_when_possible("The second payment")


def master_down(run: Run) -> None:
    """Kill a master, which starts again after the step, and send two payments at once."""
    run.demo.kill_one()
    run.pay_twice_at_once()


def quorum_lost(run: Run) -> None:
    """Make three masters hang; send a payment, and the retry of an earlier one."""
    paid, key = new_order(), str(uuid4())
    run.shopper.pay(paid.pk, key)
    run.demo.hang_three()
    run.pay("A payment")
    run.pay("The retry of an earlier payment", key=key, order=paid)
    run.take("Two of five masters answer")


def forced_release(run: Run) -> None:
    """Hold the lock as a job that does not end, and release it by force between two payments."""
    run.caption = "The job holds the lock"
    held = lock(run.resource, wait=PATIENCE, holder={"job": "report"})
    with suppress(LockLost), held:  # raised again at the end of the block
        run.pay("A payment while the job holds the lock")
        while force_release(run.resource, by="demo").outcome is ReleaseOutcome.NO_QUORUM:
            time.sleep(0.05)
        run.take("The lock has been released by force")
        run.caption = "The payment holds the lock"
        run.pay("The payment after the forced release")
        run.note = f"The job {_learns(held)}"
    run.caption = "A second job holds the lock"
    run.demo.hold(run.resource)


def _learns(held: Lock) -> str:
    """Return what a holder learns when it asks the masters for its lock."""
    while True:  # until its TTL is over, at the latest
        try:
            held.verify()
        except LockLost as error:
            return f"gets LockLost: {error}"
        except StoreUnavailable:
            time.sleep(0.05)
        else:
            return "still holds the lock"


def two_editors(run: Run) -> None:
    """Make two editors open one order in the admin, and save it one after the other."""
    run.resource = f"edit:shop.order:{run.order.pk}"
    anna, bob = Editor("Anna"), Editor("Bob")
    anna.open(run.order)
    run.take("Anna has the order open")
    said = bob.open(run.order)
    run.add("Bob saves", bob.save(2000))
    run.add("Anna saves", anna.save(1500))
    run.note = f"Bob read on his page: {said}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One page. `about` is its line on the start page.

    `lasts` is whether everything stays as it is for a while, so that the visitor can look around.
    """

    slug: str
    title: str
    about: str
    button: str
    run: Callable[[Run], None]
    lasts: bool = False

    @property
    def sentences(self) -> str:
        """The template with the three sentences of the page."""
        return f"shop/steps/{self.slug}.html"


STEPS = (
    Step(
        slug="pay-twice",
        title="Pay twice",
        about="two requests for one order at the same moment",
        button="Pay twice at once",
        run=pay_twice,
    ),
    Step(
        slug="double-click",
        title="Double click",
        about="one form, sent twice",
        button="Double click",
        run=double_click,
    ),
    Step(
        slug="retry",
        title="Retry with a key",
        about="the answer got lost, and the client asks again",
        button="Pay, and send the request again",
        run=retry_with_a_key,
    ),
    Step(
        slug="three-at-once",
        title="Three at once",
        about="five requests for reports, of which three may be made at once",
        button="Ask for five reports",
        run=three_at_once,
    ),
    Step(
        slug="two-editors",
        title="Two editors",
        about="one order, open twice in the admin",
        button="Save the order twice",
        run=two_editors,
    ),
    Step(
        slug="lost-lock",
        title="Lost lock",
        about="a payment that takes longer than its lock lives",
        button="Pay slowly, and lose the lock",
        run=lost_lock,
    ),
    Step(
        slug="master-down",
        title="Master down",
        about="one of five masters is killed",
        button="Kill a master, and pay twice",
        run=master_down,
    ),
    Step(
        slug="quorum-lost",
        title="Quorum lost",
        about="three of five masters hang",
        button="Stop three masters, and pay",
        run=quorum_lost,
        lasts=True,
    ),
    Step(
        slug="forced-release",
        title="Forced release",
        about="a job holds a lock and does not end",
        button="Release a lock by force",
        run=forced_release,
        lasts=True,
    ),
)
