"""`lock()` and everything a held lock needs: renewal, loss, events, counters, names."""
