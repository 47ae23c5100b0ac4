"""Cancellation and interrupts at any point: no key is left on any master, and locks still work."""

from __future__ import annotations

import asyncio
import dis
import inspect
import linecache
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lock import Lock, lock
from redlock_django.locking.resume_lock import resume_lock
from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.drivers.combiner import Combiner
from redlock_django.wire.drivers.threads import ThreadDriver
from tests.live.left_over import locked, nothing_left
from tests.live.linked import has_sleepers, linked
from tests.programs import started
from tests.timeouts import patient_site
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_deadlock")]
R = "order:1"


@pytest.fixture(autouse=True)
def _on_real_masters(masters: list[LocalMaster], settings: Settings) -> None:
    # A TTL that no test waits for: locks are freed only by their release.
    settings.REDLOCK = patient_site(masters, TTL=30)


# Coroutines, cancelled at every await.


class CancelAt:
    """Run a coroutine and cancel it at its await number `step`, counted from 0.

    With `late`, the awaited operation has already been completed when the cancellation comes.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], step: int, *, late: bool) -> None:
        self.work = work
        self.step = step
        self.late = late
        self.struck = False

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.work.__await__()
        step = 0
        advance: Callable[[], Any] = lambda: inner.send(None)  # noqa: E731
        while True:
            try:
                waits_for = advance()
            except StopIteration as done:
                return done.value
            now = step == self.step
            step += 1
            if now and not self.late:
                if waits_for is not None:
                    waits_for._asyncio_future_blocking = False
                    waits_for.cancel()
            else:
                yield waits_for
            if now:
                self.struck = True
                advance = lambda: inner.throw(asyncio.CancelledError())  # noqa: E731
            else:
                advance = lambda: inner.send(None)  # noqa: E731


async def cold(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    await cut(lock(R).aacquire())


async def warm(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    async with lock("other", wait=60):
        pass
    await cut(lock(R).aacquire())


async def several(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    async with lock("other", wait=60):
        pass
    await cut(lock(R, "order:2", "order:3").aacquire())


async def waiting(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    outer = await asyncio.create_task(lock(R).aacquire())  # in another task
    asyncio.get_running_loop().call_later(0.03, outer.release)
    try:
        await cut(lock(R, wait=10).aacquire())
    finally:
        outer.release()


async def extending(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    held = await lock(R).aacquire()
    try:
        await cut(held.aextend())
    finally:
        held.ensure_held()
        assert await held.aextend() > 29
        assert await held.arelease() is True


async def releasing(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    held = await lock(R).aacquire()
    await cut(held.arelease())


async def handing_on(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    held = await lock(R).aacquire()
    try:
        await cut(held.atransfer(ttl=60))
    except asyncio.CancelledError:
        held.ensure_held()  # its token is restored
        assert await held.arelease() is True
        raise


async def taking(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    held = await lock(R).aacquire()
    ticket = await held.atransfer(ttl=60)
    try:
        await cut(resume_lock(ticket).aacquire())
    except asyncio.CancelledError:
        taken = await resume_lock(ticket).aacquire()
        assert await taken.arelease() is True
        raise


async def block(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    async def body() -> None:
        async with lock(R) as held:
            await asyncio.sleep(0)
            await held.aextend()

    await cut(body())


async def split(masters: list[LocalMaster], cut: Callable[..., Any]) -> None:
    """Another client has two of five masters, so fences differ or rounds are repeated."""
    for master in masters[:2]:
        with master.client() as client:
            client.set(f"redlock:lock:{R}", "another client", px=60_000)
            client.set(f"redlock:fence:{R}", str(int(time.time() * 1e6) + 200_000))
    try:
        await cut(lock(R, wait=60).aacquire())
    finally:
        for master in masters[:2]:
            with master.client() as client:
                client.delete(f"redlock:lock:{R}")


@pytest.mark.fault(without=("cancelled without an undo",))
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize(
    "scene",
    [cold, warm, several, waiting, extending, releasing, handing_on, taking, block, split],
)
def test_cancelled_at_every_step(
    scene: Callable[..., Coroutine[Any, Any, None]], late: bool, masters: list[LocalMaster]
) -> None:
    struck = 0
    for step in count():
        assert step < 200
        cut: list[CancelAt] = []

        async def one(step: int = step, cut: list[CancelAt] = cut) -> None:
            def cutting(work: Coroutine[Any, Any, Any]) -> CancelAt:
                cut.append(CancelAt(work, step, late=late))
                return cut[-1]

            try:
                await scene(masters, cutting)
            except asyncio.CancelledError:
                assert cut[0].struck
            else:
                assert not cut[0].struck, "a cancellation was swallowed"
                # A lock that was acquired here has no holder: only its TTL frees it.
                for name in (R, "order:2", "order:3"):
                    _sweep(masters, name)
            await asyncio.to_thread(nothing_left, masters)
            async with lock(R, wait=60):
                pass

        asyncio.run(one())
        nothing_left(masters)
        if not cut[0].struck:
            break
        struck += 1
    assert struck >= 1


def _sweep(masters: list[LocalMaster], name: str) -> None:
    for master in masters:
        with master.client() as client:
            # A holder stays in the queues of the masters that refused it, until its release.
            keys = (f"redlock:{kind}:{name}" for kind in ("lock", "queue"))
            client.delete(*keys)


def test_a_lock_timed_out_while_the_masters_hang_leaves_nothing(masters: list[LocalMaster]) -> None:
    async def main() -> None:
        async with lock("other", wait=60):
            pass
        for master in masters:
            master.pause()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lock(R).aacquire(), 0.01)
        for master in masters:
            master.resume()
        await asyncio.to_thread(nothing_left, masters)

        async with asyncio.timeout(60):
            while True:
                try:
                    async with lock(R):
                        return
                except Exception:  # noqa: BLE001 - the links come back one by one
                    await asyncio.sleep(0.02)

    asyncio.run(main())
    nothing_left(masters)


# Threads, interrupted by Ctrl-C at every line of the package.


Place = tuple[str, int]


class Lines:
    """Raise KeyboardInterrupt before one line of the package that this thread runs.

    Only before lines where Python itself may handle a signal: where a function begins or a
    generator resumes, after a call of a function in C, and where a loop repeats.
    """

    def __init__(self) -> None:
        self.wanted: tuple[Place, int] | None = None
        self.seen: Counter[Place] = Counter()
        self.struck = False
        self._last = ""
        self._frame: FrameType | None = None
        self._offset = self._line = 0

    def run(self, work: Callable[[], object], wanted: tuple[Place, int] | None = None) -> None:
        """Call `work`; interrupt it when it comes to the `wanted` line for the nth time."""
        self.wanted, self.struck = wanted, False
        self.seen.clear()
        before = sys.gettrace()
        sys.settrace(self._calls)
        try:
            work()
        finally:
            sys.settrace(before)

    def strike(self, held: Lock, what: str, wanted: tuple[Place, int] | None) -> None:
        """Call the method `what` of a lock like `run`; release what it holds afterwards."""
        if what != "acquire":
            held.acquire()
        try:
            self.run(getattr(held, what), wanted)
        except KeyboardInterrupt:
            assert self.struck
        if what == "extend" or not self.struck:
            held.release()

    def _calls(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/redlock_django/" not in frame.f_code.co_filename:
            return None
        self._last = event
        return self._lines

    def _lines(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self.struck:
            if self._noticed(frame):
                place = frame.f_code.co_filename, frame.f_lineno
                self.seen[place] += 1
                if self.wanted == (place, self.seen[place]):
                    self.struck = True
                    raise KeyboardInterrupt
            self._frame, self._offset, self._line = frame, frame.f_lasti, frame.f_lineno
        # A generator is called from C, which handles signals when the generator yields.
        generator = event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
        self._last = "yield" if generator else event
        return self._lines

    def _noticed(self, frame: FrameType) -> bool:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # The end of a `with` block is traced as its first line, where no signal is handled. And
        # an interrupt before the `try` of a release cannot be handled by any code.
        if text.startswith("with ") or (
            frame.f_code is Lock.release.__code__ and "_leave" not in text
        ):
            return False
        if self._last in ("call", "yield"):
            return True
        if self._last != "line" or frame is not self._frame:
            return False
        # Calls that a jump forward leaves out are not made: only those of the line before count.
        first, last = self._offset, frame.f_lasti
        calls = _calls_in(frame.f_code, self._line)
        return last <= first or any(first <= place < last for place in calls)


@cache
def _calls_in(code: CodeType, line: int) -> list[int]:
    return [
        i.offset
        for i in dis.get_instructions(code)
        if i.opname.startswith("CALL") and i.positions and i.positions.lineno == line
    ]


@pytest.mark.fault(without=("no undo",))
@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["acquire", "extend", "release", pytest.param("wait", marks=pytest.mark.nightly), "hand over"],
)
def test_interrupted_at_every_line(
    what: str, masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "hand over":  # a waiter that neither its process nor a master calls asks too late
        monkeypatch.setattr("redlock_django.engine.pauses.CALM", 60.0)
        monkeypatch.setattr("redlock_django.engine.pauses.CALM_LONGEST", 60.0)
    # An exception that a trace function raises at the end of an `except` block stays "being
    # handled" in its thread, and would be the context of every later one: so use a new thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt_at_every_line, what, masters).result()


def interrupt_at_every_line(what: str, masters: list[LocalMaster]) -> None:
    linked()
    lines = Lines()

    def run(wanted: tuple[Place, int] | None) -> None:
        if what in ("wait", "hand over"):
            one_after_the_other(lines, wanted, interrupts_waiter=what == "wait")
            return
        lines.strike(lock(R), what, wanted)

    visits: Counter[Place] = Counter()
    for _ in range(5):
        run(None)
        visits |= lines.seen
    struck = 0
    for place, times in visits.items():
        for nth in {1, times}:  # the number of repetitions of a loop varies
            run((place, nth))
            struck += lines.struck
            try:
                nothing_left(masters)
                with lock("order:2", wait=60):
                    pass
            except Exception as error:
                raise AssertionError(f"after an interrupt at {place}, time {nth}") from error
    assert struck > 50


def one_after_the_other(
    lines: Lines, wanted: tuple[Place, int] | None, *, interrupts_waiter: bool
) -> None:
    """Pass the lock of one thread to a waiter of this process; interrupt one of the two."""
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    links = backend.thread_driver().links
    held = lock(R)

    def hold() -> None:
        held.acquire()
        holds.set()
        until(lambda: has_sleepers(links) or ended.is_set(), "a waiter sleeps in the queue")
        release = held.release
        (release if interrupts_waiter else partial(lines.run, release, wanted))()

    def wait() -> None:
        holds.wait(60)
        waiter = lock(R, wait=20)
        try:
            (partial(lines.run, waiter.acquire, wanted) if interrupts_waiter else waiter.acquire)()
            waiter.release()
        finally:
            ended.set()

    holds, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        for taker in [pool.submit(hold), pool.submit(wait)]:
            try:
                taker.result(60)
            except KeyboardInterrupt:
                assert lines.struck
    assert not has_sleepers(links)


def test_a_thread_interrupted_when_its_round_is_decided_leaves_the_reading_to_others(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    linked()

    def interrupted(combiner: Combiner) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Combiner, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock(R).acquire()
    done = threading.Event()

    def other_thread() -> None:
        with lock("order:2"):
            done.set()

    threading.Thread(target=other_thread, daemon=True).start()
    assert done.wait(60)


# Processes, interrupted by SIGINT.


PROCESS = """
    import time
    if sys.argv[1] == "wait":
        with lock("other"):
            pass
        print("ready", flush=True)
        with lock("order:1", wait=90):
            print("taken", flush=True)
    else:
        print("ready", flush=True)
        with lock("order:1"):
            print("taken", flush=True)
            while True:  # a signal just before one long sleep is seen only after it
                time.sleep(0.01)
"""


def test_ctrl_c_ends_a_process_that_waits_for_a_lock(masters: list[LocalMaster]) -> None:
    with lock(R) as held:
        with started(PROCESS, "wait", redlock=patient_site(masters, TTL=30)) as process:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=90)
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in err
        assert out == ""
        held.ensure_held()
        until(lambda: locked(masters).keys() == {f"redlock:lock:{R}"}, "no other lock is left")
    nothing_left(masters)


@pytest.mark.fault(without=("no undo",))
def test_ctrl_c_while_holding_a_lock(masters: list[LocalMaster]) -> None:
    with started(PROCESS, "hold", redlock=patient_site(masters, TTL=30)) as process:
        assert process.hear() == "taken"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
        assert process.returncode == -signal.SIGINT
    nothing_left(masters)


def test_a_signal_handler_that_takes_a_lock_breaks_no_other(masters: list[LocalMaster]) -> None:
    """It gets the lock, or is refused because its thread is in the middle of another one."""
    seen: Counter[str] = Counter()
    spare = [lock(f"spare:{number}").acquire() for number in range(20)]

    def handler(*_: object) -> None:
        if spare and seen.total() % 5 == 0:
            spare.pop().release()
        try:
            with lock("handler"):
                seen["held"] += 1
        except RuntimeError as error:
            seen["refused"] += "Let the handler set a flag or start a thread" in str(error)

    def strike() -> None:
        while not done.wait(0.002):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before, done = signal.signal(signal.SIGUSR1, handler), threading.Event()
    striking = threading.Thread(target=strike)
    striking.start()
    try:
        deadline = time.monotonic() + 90
        while min(seen["held"], seen["refused"]) < 10 or spare:
            with lock(R):
                time.sleep(0.001)
            assert time.monotonic() < deadline, seen
    finally:
        done.set()
        striking.join()
        signal.signal(signal.SIGUSR1, before)
    nothing_left(masters)


def test_a_release_hides_no_error_of_a_signal_handler(
    masters: list[LocalMaster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler that interrupts it asks for a lock, and does not expect to be refused."""
    held = lock(R).acquire()
    carry = ThreadDriver._take

    def interrupted(*arguments: Any) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        carry(*arguments)

    before = signal.signal(signal.SIGUSR1, lambda *_: lock("handler").acquire())
    monkeypatch.setattr(ThreadDriver, "_take", interrupted)
    try:
        assert held.release() is False
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "the release failed" in caplog.text
    assert "Let the handler set a flag" in caplog.text
    nothing_left(masters)
