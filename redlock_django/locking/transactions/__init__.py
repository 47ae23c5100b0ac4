"""Locks and transactions: locks that are released after COMMIT, and transactions that lock."""
