"""Tools for operators: held locks, forced release, and the health of the servers."""
