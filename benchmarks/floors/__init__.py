"""The floors: what the wire itself costs, without a lock library."""
