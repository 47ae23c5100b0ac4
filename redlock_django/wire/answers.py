"""Answers: replies that do not plainly grant, such as refusals, errors, pushes and checks."""

from __future__ import annotations

from typing import Any

import hiredis

from redlock_django.engine.commands import Acquire, Release, as_array, script
from redlock_django.engine.quorum import Ballot, failed
from redlock_django.engine.statuses import NOT_READY
from redlock_django.wire.clock import clock
from redlock_django.wire.dialer import Dialer
from redlock_django.wire.exchange import Owed
from redlock_django.wire.join import Trust, Unfit, first_word, join_arguments, read_trust
from redlock_django.wire.link import Link, ProtocolDesync, pack, pack_command
from redlock_django.wire.master import Master
from redlock_django.wire.server_info import read_info


class Answers(Dialer):
    """Handle the replies that are not counted as plain grants."""

    def _answer(self, master: Master, link: Link, reply: Any) -> None:
        reply = as_array(reply)
        plain = type(reply) is list
        if not plain and isinstance(reply, hiredis.PushNotification):
            self._handle_push(master, link, reply)
            return
        if not link.owed:
            raise ProtocolDesync("a reply without a command")
        # Removed only once its reply has proved to be valid and is handled: otherwise the waiting
        # caller would get no verdict if the link is lost, or an interrupt strikes meanwhile.
        owed = link.owed[0]
        exchange, command = owed.exchange, owed.command
        if not plain and isinstance(reply, hiredis.ReplyError):
            self._handle_error(master, owed, first_word(reply))
            self._pop_owed(link)
            return
        if owed.loads or owed.subscribes:
            if owed.subscribes or not isinstance(reply, bytes):
                raise ProtocolDesync("a reply of another round")
            self._pop_owed(link)
            return
        if owed.inspects:
            if not isinstance(reply, bytes) or b"run_id:" not in reply:
                raise ProtocolDesync("a reply of another round")
            self._inspected(master, read_info(reply))
            self._pop_owed(link)
            return
        number = exchange.number if exchange is not None else 0
        if not plain or len(reply) < 3 or reply[0] != number:
            raise ProtocolDesync("a reply of another round")
        try:
            if command is None:
                trust = read_trust(
                    self.membership,
                    master.address.name,
                    master.run_id,
                    reply,
                    owed.sent,
                    clock(),
                )
            else:
                vote = command.vote(reply[1:])
        except Unfit as error:
            self.lose(master, str(error))
            return
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ProtocolDesync("a reply of another shape") from error
        read = clock()
        if master.failures:
            master.failures = 0
        if master.refused_releases and isinstance(command, Release):
            master.refused_releases.pop(command.token, None)
        if command is None:
            self._checked(master, owed.mode, trust)
            self._pop_owed(link)
            return
        if reply[2] != 0:  # the script has read the master's clock
            time = reply[2] / 1_000_000
            self.steps.note(master, time - read, time - owed.sent)
        if reply[1] == NOT_READY:
            self._check(master, master.check_mode)
        if exchange is not None:
            # After the reply that revealed a clock step come replies of rounds that were sent
            # before.
            doubt = master.doubt(read) if command.trusted else ""
            exchange.cast(master.index, failed(doubt) if doubt else vote)
            if vote.ballot is Ballot.GRANTED:
                self._undo_late(master, owed)
        self._pop_owed(link)

    def _handle_push(self, master: Master, link: Link, push: list[Any]) -> None:
        """Handle a push: the answer to SUBSCRIBE, a call for a waiter, or another to ignore."""
        kind = push[0] if push else None
        if kind == b"subscribe":
            if not link.owed or not link.owed[0].subscribes:
                raise ProtocolDesync("a subscription without a SUBSCRIBE")
            self.waiters.listen(master.index)
            self._pop_owed(link)
        elif kind == b"message" and len(push) == 3:
            self.waiters.call(push[2], master.index)

    def _pop_owed(self, link: Link) -> None:
        """Remove the oldest owed reply, which has come and is handled."""
        owed = link.owed.popleft()
        if link.expired:
            link.expired -= 1
        link.ran = self.lateness.running.passed
        link.heard = clock()
        link.took = link.heard - owed.sent

    def _handle_error(self, master: Master, owed: Owed, word: str) -> None:
        """Handle an error reply."""
        if owed.loads:
            return
        if owed.subscribes:
            self._log_polling(master, f"answered {word} to SUBSCRIBE")
            return
        if word == "NOSCRIPT" and self._retry(master, owed):
            return
        if owed.exchange is not None:
            owed.exchange.cast(master.index, failed(f"answered {word}"))
        # A check that failed must be made again, or the master would be suspected for ever.
        if owed.command is None or word in ("READONLY", "NOAUTH", "LOADING", "MASTERDOWN", "BUSY"):
            if isinstance(owed.command, Release):
                master.keep_release(owed.command)
            self.lose(master, f"answered {word}")  # the next join finds the reason
        elif isinstance(owed.command, Release):  # MISCONF, NOREPLICAS, OOM: for writes alone
            master.refuse_release(owed.command, clock() + self.deployment.max_ttl)

    def _retry(self, master: Master, owed: Owed) -> bool:
        """Answer NOSCRIPT by EVAL, unless the round is over: then its undo is already sent."""
        command = owed.command
        if isinstance(command, Acquire):
            # If its undo had to be sent again by EVAL, it would arrive after the next acquire.
            self._load(master, "release")
        if command is None:
            asked = join_arguments(
                self.deployment, master.run_id, owed.mode, 0, self.membership, text=True
            )
            data = pack("EVAL", *asked)
        elif isinstance(command, Release) or owed.undecided is not None:
            data = pack_command(command, owed.number, text=True)
        else:
            # Otherwise a master that is always the last to answer would never learn the script.
            self._load(master, command.name)
            return False
        self._write(master, Owed(owed.exchange, command, clock(), mode=owed.mode), data)
        return True

    def _load(self, master: Master, name: str) -> None:
        data = pack("SCRIPT", "LOAD", script(name)[0])
        self._write(master, Owed(None, None, clock(), loads=True), data)

    def _checked(self, master: Master, mode: str, trust: Trust) -> None:
        """Note the answer to a check that was made in this mode."""
        settled = mode == master.check_mode
        if settled:  # otherwise a mark was asked for since then, and is still owed
            master.checking = False
            master.check_mode = "join"
        self._trusted(master, trust)
        if settled:
            self.steps.checked(master)
        self._changed()
