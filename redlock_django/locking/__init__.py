"""`lock()`, and what it needs: services of the aliases, renewal, events, counters, names."""
