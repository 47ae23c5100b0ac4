"""The connections of the database store: a bounded number of threads, each with one.

Callers queue jobs and wait for their results with a limit of time. So a database that hangs keeps
no caller longer than that, an interrupt of a caller cannot strike inside the protocol of a
connection, and threads and event loops share the connections.

To be woken takes a thread longer than a statement takes the database. So a caller borrows a
connection that nobody uses, and does its job itself, where it can wait with a limit of time. If it
is interrupted or gives up, or anything fails, one of the threads takes over the job with its
connection, waits for the end of the statement (not for ever), and does the job again.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db import Error, InterfaceError, InternalError, NotSupportedError, OperationalError

from redlock_django.backends.base import Notice, ignore
from redlock_django.backends.database.dialects import sqlstate
from redlock_django.backends.database.direct_cursor import DirectCursor, can_be_direct
from redlock_django.backends.database.jobs import Connection, Job, close_cursor
from redlock_django.backends.database.settings import PATIENCE, prepare_statements
from redlock_django.backends.database.sql import forget_dead
from redlock_django.backends.database.tables import remedy_of
from redlock_django.backends.database.trust import FileReplaced, ready_in, recognize
from redlock_django.backends.protocol_backend import StepRunner, StoreStep, wake_nobody
from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import StoreUnavailable
from redlock_django.wire.clock import clock

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

T = TypeVar("T")
_LOOKING = 0.05  # seconds for which a thread waits for a connection, then for a job that has one
CLOSING = 2.0  # seconds for which a process that ends waits for its last releases
# A server that became read-only is an internal error: a new connection may reach the primary. A
# prepared statement whose table was altered is not supported any more.
_BROKEN = (OperationalError, InterfaceError, InternalError, NotSupportedError)
_CONFLICTS = ("40001", "40P01")  # SQLSTATE: serialization failure, deadlock
_UNSENT = 1000  # the most releases that are kept for a database that is down
_REPEATED = 5  # attempts of a statement that conflicted with another


class Connections(StepRunner):
    """The connections of one process to one database.

    They are made when they are first needed. `trusted_from` is the moment of `clock` from which a
    server that may have forgotten locks is trusted: `forgotten` seconds after it was recognized.
    After a fork, make a new object: the threads that own the connections do not exist in the
    child, which leaves them alone.
    """

    def __init__(
        self,
        connect: Callable[[], BaseDatabaseWrapper],
        *,
        name: str,
        most: int,
        timeout: float,
        forgotten: float,
        notice: Notice = ignore,
    ) -> None:
        self.closed = False
        self.trusted_from = 0.0
        self._forgotten = forgotten
        self._connect = connect
        self._name = name
        self._most = most
        self._timeout = timeout
        self._notice = notice
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle: set[threading.Thread] = set()
        self._free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._lends = False
        self._waiting: set[threading.Thread] = set()  # for a connection that is free
        self._doing = threading.local()  # its `job` is the one that the calling thread does itself
        self._starting = threading.RLock()  # a signal handler may interrupt its own thread
        self._failing = False
        self._unsent: deque[Job[Any]] = deque()

    def run(self, work: Callable[[CursorWrapper], T]) -> T:
        """Do the work on a connection, and return its result.

        Raises StoreUnavailable if the database failed or did not answer in time.
        """
        job = Job(work)
        self.finish(job, self.start(job))
        return job.result()

    def perform(self, step: StoreStep) -> None:
        """Perform a step; do a job in the calling thread if it can.

        An interrupt leaves the job to a thread, if it has begun.
        """
        if not isinstance(step, Job):
            return super().perform(step)
        job: Job[Any] = step
        around = self._own_job()  # that of a caller which a signal handler has interrupted
        self._doing.job = job
        try:
            if self._do_here(job):
                return None
            ended = self.start(job)
        except BaseException:
            if job.borrowed:
                self._take_over(job)
            raise
        finally:
            self._doing.job = around
        return self.finish(job, ended)

    def _take_over(self, job: Job[Any]) -> None:
        """Leave a job that its caller has begun to a thread; once closed, leave the connection."""
        try:
            self.start(job)
        except (StoreUnavailable, RuntimeError):
            _move(job.borrowed.pop, self._free.put)

    def _do_here(self, job: Job[Any]) -> bool:
        """Do a job on a connection that is free, and return whether it was done."""
        if not self._lends or self._waiting or self._failing or self._unsent or self.closed:
            return False
        try:
            _move(self._free.get_nowait, job.borrowed.append)
            cursor = job.borrowed[0].cursor
            if is_lent := isinstance(cursor, DirectCursor):
                cursor.deadline = clock() + self._timeout
                job.value = job.work(cast("CursorWrapper", cursor))
                job.ended = True
                cursor.deadline = None
            _move(job.borrowed.pop, self._free.put)
        except queue.Empty:
            return False
        except TimeoutError:
            raise self.too_late() from None
        except Exception:  # noqa: BLE001 - the thread that does the job again finds out
            return False
        return is_lent

    def begin_work(self, step: Job[Any]) -> None:
        step.seconds = self._timeout
        self.submit(step)

    def post(self, work: Callable[[CursorWrapper], object]) -> None:
        """Do the work soon, and return at once. What fails is done when the database is back."""
        with suppress(StoreUnavailable, RuntimeError):  # closed, or no thread can be started
            self.submit(Job(work))

    def submit(self, job: Job[Any]) -> None:
        """Queue a job for the next connection that is free."""
        if self.closed:
            raise StoreUnavailable(f"{self._name}: the connections of locks have been closed")
        self._jobs.put(job)
        if self._free.empty() or self._jobs.qsize() > len(self._idle):
            self._start_thread()

    def _start_thread(self) -> None:
        if len(self._threads) < self._most:
            with self._starting:
                if len(self._threads) < self._most:
                    name = f"redlock-database-{self._name}"
                    thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def is_inside(self) -> bool:
        job = self._own_job()
        return bool(job and job.borrowed) or threading.current_thread() in self._threads

    def _own_job(self) -> Job[Any] | None:
        return getattr(self._doing, "job", None)

    def too_late(self, step: object = None) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name}: no answer within {self._timeout:g} s")

    def refuse_untrusted(self) -> None:
        """Raise StoreUnavailable if the server may have forgotten locks."""
        if (left := self.trusted_from - clock()) > 0:
            why = f"restarted, failed over or restored: trusted in {left:.0f} s"
            raise StoreUnavailable(
                f"database {self._name}: {why}", tally={self._name: why}, retry_after=left
            )

    def close(self) -> None:
        """Finish the queued jobs and close the connections, within a limit of time."""
        self.closed = True
        threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSING / len(threads))

    # In the threads.

    def _serve(self) -> None:
        # This frame keeps the connection: a forked child must not collect, and so close it.
        own = Connection()
        self._free.put(own)
        thread = threading.current_thread()
        while True:
            self._idle.add(thread)
            job = self._jobs.get()
            self._idle.discard(thread)
            if job is None:
                break
            if job.borrowed or not job.is_unwanted():
                self._finish_job(job)
        self._free.get().close()

    def _finish_job(self, job: Job[Any]) -> None:
        connection = self._connection_for(job)
        if not job.is_unwanted():
            self._do(job, connection)
        if job.is_unwanted():
            self._do(Job(job.undo), connection)
        # Before the caller goes on, which may want it for its next job.
        self._free.put(connection)
        job.end()

    def _connection_for(self, job: Job[Any]) -> Connection:
        """Return the connection on which its caller has begun a job, or one that is free."""
        with suppress(IndexError):
            connection = job.borrowed.pop()
            self._finish(connection)
            job.repeated = True
            return connection
        thread = threading.current_thread()
        self._waiting.add(thread)
        while True:
            with suppress(queue.Empty):
                connection = self._free.get(timeout=_LOOKING)
                break
            self._finish_left_jobs()
        self._waiting.discard(thread)
        return connection

    def _finish_left_jobs(self) -> None:
        """Do the queued jobs that callers have left with their connections.

        They may have all connections, and all threads wait for one.
        """
        for _ in range(self._jobs.qsize()):
            with suppress(queue.Empty):
                job = self._jobs.get_nowait()
                if job is not None and job.borrowed:
                    self._finish_job(job)
                else:
                    self._jobs.put(job)

    def _do(self, job: Job[Any], connection: Connection) -> None:
        """Do a job, on a new connection if the old one broke.

        A connection has one cursor, because a new one for each job would take longer.
        """
        attempts = 0
        while True:
            attempts += 1
            is_new = connection.cursor is None
            try:
                cursor = connection.cursor = connection.cursor or self._new_cursor()
                with self._limited(cursor):
                    job.value = job.work(cast("CursorWrapper", cursor))
                self._report(True)
            except _BROKEN as error:
                if isinstance(error, FileReplaced):
                    self.trusted_from = clock() + self._forgotten
                conflict = sqlstate(error) in _CONFLICTS
                if not conflict:
                    connection.close()
                if (conflict or not is_new) and attempts < _REPEATED:
                    job.repeated = job.repeated or not conflict
                    continue
                job.error = self._unavailable(error)
                self._report(False, str(job.error))
                if job.wake is wake_nobody and len(self._unsent) < _UNSENT:
                    self._unsent.append(job)
            except Error as error:
                job.error = self._unavailable(error)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                job.error = error
            return

    def _limited(self, cursor: CursorWrapper | DirectCursor) -> AbstractContextManager[None]:
        """Limit the time of a block. Only MySQL's driver has a limit of its own."""
        is_direct = isinstance(cursor, DirectCursor)
        return cursor.within(PATIENCE * self._timeout) if is_direct else nullcontext()

    def _finish(self, connection: Connection) -> None:
        """Wait for the end of a statement that a caller has left; close a connection that broke."""
        if isinstance(cursor := connection.cursor, DirectCursor):
            try:
                with self._limited(cursor):
                    cursor.finish()
            except Exception:  # noqa: BLE001 - a new connection finds out more
                connection.close()

    def _new_cursor(self) -> CursorWrapper | DirectCursor:
        wrapper = self._connect()
        wrapper.inc_thread_sharing()
        cursor = wrapper.cursor()
        made = DirectCursor(cursor) if can_be_direct(cursor) else cursor
        self._lends = made is not cursor
        try:
            with self._limited(made):
                prepare_statements(cast("CursorWrapper", made))
                self._recognize(cast("CursorWrapper", made))
            return made
        except BaseException:
            close_cursor(made)  # a connection whose server is not recognized is not used
            raise

    def _recognize(self, cursor: CursorWrapper) -> None:
        recognize(cursor, self._forgotten)
        if left := ready_in(cursor, self._forgotten):
            self.trusted_from = clock() + left
        forget_dead(cursor)  # a process that died had connections, which are made again

    def _unavailable(self, error: Error) -> StoreUnavailable:
        remedy = remedy_of(error, self._name)
        why = remedy or printable(str(error).strip().partition("\n")[0]) or type(error).__name__
        unavailable = StoreUnavailable(f"database {self._name}: {why}", tally={self._name: why})
        unavailable.remedy = remedy
        return unavailable

    def _report(self, up: bool, reason: str = "") -> None:
        """Report a change, and do again what failed before."""
        with suppress(IndexError):
            while True:  # without a condition: see docs/contributing/interrupts.md
                if not (up and self._unsent):
                    break
                job = self._unsent.popleft()  # not a swap: another thread may append meanwhile
                job.error = None
                self._jobs.put(job)
        if self._failing is up:
            self._failing = not up
            self._notice(self._name, up, reason)


def _move(take: Callable[[], Connection], put: Callable[[Connection], object]) -> None:
    """Take a connection from one place to another, in one call that no signal interrupts."""
    deque(map(put, islice(iter(take, None), 1)), maxlen=0)
