"""Locks around views and functions: decorators, mixins, rules, transactions and responses."""
