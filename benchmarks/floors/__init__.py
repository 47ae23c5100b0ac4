"""The floors: the cost of sockets alone, without a lock library."""
