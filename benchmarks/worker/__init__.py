"""One contender in a process of its own, doing the jobs that every contender does.

Runs in a peer's environment too: nothing here but the standard library, from Python 3.9 on.
"""
