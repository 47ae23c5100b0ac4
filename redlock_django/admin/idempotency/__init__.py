"""The admin of idempotency records: `records` has what Django loads, the rest is for its pages."""
