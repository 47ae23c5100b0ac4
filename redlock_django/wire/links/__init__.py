"""The links to all masters of an alias: outbox, inbox, dialer, and the waiters."""
