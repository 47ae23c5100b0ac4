"""The Redlock algorithm: which client holds a lock, for how long, and with which fencing token.

Rules of this package, checked by `tests/test_architecture.py`:

1. A module of this package performs no I/O, reads no clock, starts no thread and draws no random
   number. Times, tokens, proposals and delays are arguments, so that a driver or a simulator
   controls them.
2. A module of this package imports nothing of redlock_django but this package, and its folders
   import each other in one direction: `inspection/` imports modules beside it, and those import
   `protocol/`. `quorum` imports only the votes that it counts, `errors` nothing of redlock_django.
3. Only `quorum` compares counts of votes. No other code decides whether a round was won.
4. Every way out of a round that was not won (lost, too late, cancelled, interrupted) yields the
   same release round, so a driver cannot forget to undo.
5. Times are seconds of the driver's clock, as floats. A master is sent whole milliseconds (TTLs) or
   whole microseconds (fences, the master's TIME).

Read `rounds` first: it follows the paper from top to bottom
(https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). Then read `attempt` (the
attempts of one call, and its wait), `quorum` (was a round won, and why), `validity` (for how long),
`fencing` (with which token), `pauses` (when to ask again), `protocol/` (what is sent to a master,
and the meaning of each answer), and `renewal` (when to extend next). `run_protocol` runs a protocol
to its end, and `inspection/` has the questions of operators.
"""
