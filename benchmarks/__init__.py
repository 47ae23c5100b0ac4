"""Benchmarks of redlock_django, other lock libraries and bare sockets; see README.md."""
