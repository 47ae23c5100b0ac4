"""One contender in a separate process, running the jobs of all contenders.

It also runs in the environments of peers, so it uses only the standard library of Python 3.9.
"""
