"""THE ALGORITHM: who holds a lock, for how long, and with which fencing token.

House rules, kept by `tests/test_architecture.py`:

1. Nothing here performs I/O, reads a clock, starts a thread or draws luck. Time,
   tokens, proposals and delays are arguments, so a driver (or a simulator) owns them.
2. Nothing here imports anything of ours but this package; `quorum` and `errors`
   import nothing of ours at all.
3. Only `quorum.Tally` compares counts of votes. Nobody else decides who won.
4. Every way out of a round that did not win (lost, too late, cancelled,
   interrupted) yields the same release round, so a driver cannot forget to undo.
5. Times are seconds of the driver's clock as floats; what goes to a master is whole
   milliseconds (TTLs) or whole microseconds (fences, the master's TIME).

Read `rounds` first: it is the paper (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/),
top to bottom. Then `quorum` (who won), `validity` (for how long), `fencing` (which
token), `commands` and `lua/` (what is said to a master and what each answer means),
`renewal` (when to extend next).
"""
