"""The stores of idempotency records, in a database table and in a cache, and what they store."""
