"""The stores of idempotency records: a database table and a Django cache."""
