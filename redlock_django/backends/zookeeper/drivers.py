"""Perform the steps of a protocol with ZooKeeper, in the thread of the caller or on its loop.

A caller never touches kazoo's results: they have mutexes in Python, which an interrupt would leave
locked. docs/explanation/interrupts.md explains this.
"""

from __future__ import annotations

from redlock_django.backends.zookeeper.requests import ZooKeeperStep
from redlock_django.backends.zookeeper.session import Session
from redlock_django.wire.wakeup import LoopWakeup, Wakeup


def start(session: Session, step: ZooKeeperStep) -> Wakeup:
    """Begin a step; return what `finish` needs to wait for it."""
    ended = Wakeup()
    step.wake = ended.wake
    session.begin(step)
    return ended


def finish(session: Session, step: ZooKeeperStep, ended: Wakeup) -> None:
    """Wait for a step; raise StoreUnavailable if it has requests that were not answered in time."""
    if not ended.wait(step.seconds):
        session.too_late(step)


def perform(session: Session, step: ZooKeeperStep) -> None:
    """Perform a step in the thread of the caller."""
    finish(session, step, start(session, step))


async def aperform(session: Session, step: ZooKeeperStep) -> None:
    """Perform a step on the running loop."""
    ended = LoopWakeup()
    step.wake = ended.wake
    session.begin(step)
    if not await ended.wait(step.seconds):
        session.too_late(step)
